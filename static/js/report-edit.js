// The editor of a report: a preview that follows the text, saves by themselves, and a warning where two people write.
"use strict";
(() => {
  const form = document.getElementById("editor"), preview = document.getElementById("preview");
  const text = form.elements.text, title = form.elements.title, revision = form.elements.revision;
  const saved = document.getElementById("saved"), other = document.getElementById("other"), conflict = document.getElementById("conflict");
  const PREVIEW_MS = 400, SAVE_MS = 2000, SPEAK_MS = 15000;
  let written = `${title.value}\n${text.value}`; // what the server has
  let theirs = null, saving = false, previewTimer = 0, saveTimer = 0, asked = 0;

  const now = () => `${title.value}\n${text.value}`;
  const say = (words) => { saved.textContent = words; };
  const send = (url) => fetch(url, { method: "POST", body: new FormData(form), headers: { "HX-Request": "true" } });

  async function show() {
    const mine = ++asked;
    preview.classList.add("stale");
    try {
      const response = await send(form.dataset.preview);
      if (response.redirected || response.status === 403) return say("You are logged out. Copy your text, then log in again.");
      if (!response.ok) throw new Error(`the server answered ${response.status}`);
      const answer = await response.text();
      if (mine !== asked) return; // a newer text is on its way
      replace(answer);
    } catch (error) {
      say(`No preview (${error.message})`);
    } finally {
      if (mine === asked) preview.classList.remove("stale");
    }
  }

  // A figure whose directive did not change keeps its element: it is neither asked for nor drawn again.
  function replace(html) {
    const page = new DOMParser().parseFromString(html, "text/html");
    const kept = new Map([...preview.querySelectorAll(".report-live")].map((figure) => [figure.id, figure]));
    page.body.querySelectorAll(".report-live").forEach((figure) => {
      const known = kept.get(figure.id);
      if (!known) return;
      kept.delete(figure.id);
      figure.replaceWith(known);
    });
    preview.replaceChildren(...page.body.childNodes);
    document.dispatchEvent(new CustomEvent("parlab:figures"));
  }

  async function save() {
    clearTimeout(saveTimer);
    if (saving || theirs || now() === written) return;
    saving = true;
    const sent = now();
    say("Saving…");
    try {
      const response = await send(form.action);
      if (response.redirected || response.status === 403) return say("Not saved: you are logged out. Copy your text, then log in again.");
      const answer = await response.json();
      if (response.status === 409) return warn(answer);
      if (!response.ok) return say(answer.problem);
      revision.value = answer.revision;
      written = sent;
      say(`Saved ${answer.saved}`);
    } catch {
      say("Not saved: the server does not answer. It is tried again.");
      saveTimer = setTimeout(save, 3 * SAVE_MS);
    } finally {
      saving = false;
      if (now() !== sent && !theirs) saveTimer = setTimeout(save, SAVE_MS);
    }
  }

  function warn(answer) {
    theirs = answer;
    conflict.querySelector("p").textContent = answer.problem;
    conflict.hidden = false;
    say("Not saved");
  }

  async function speak() {
    if (document.hidden) return;
    try {
      const answer = await (await send(form.dataset.editing)).json();
      other.hidden = !answer.other;
      other.textContent = answer.other ? `${answer.other} has this report open too. Whoever saves second is warned; agree who writes.` : "";
    } catch { /* the next save says that the server is away */ }
  }

  form.addEventListener("input", (event) => {
    if (event.target !== text && event.target !== title) return;
    say("Not saved yet");
    clearTimeout(previewTimer);
    clearTimeout(saveTimer);
    previewTimer = setTimeout(show, PREVIEW_MS);
    saveTimer = setTimeout(save, SAVE_MS);
  });
  form.addEventListener("submit", (event) => { event.preventDefault(); save(); });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "s" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    save();
  });
  document.getElementById("take-theirs").addEventListener("click", () => {
    title.value = theirs.title;
    text.value = theirs.text;
    revision.value = theirs.revision;
    written = now();
    theirs = null;
    conflict.hidden = true;
    say("Theirs");
    show();
  });
  document.getElementById("keep-mine").addEventListener("click", () => {
    revision.value = theirs.revision;
    theirs = null;
    conflict.hidden = true;
    save();
  });
  addEventListener("beforeunload", (event) => { if (now() !== written) event.preventDefault(); });
  document.querySelector(".report-bar a.primary").addEventListener("click", async (event) => {
    if (now() === written) return;
    event.preventDefault();
    await save();
    if (now() === written) location.assign(event.target.href);
  });
  setInterval(speak, SPEAK_MS);
})();
