// The report editor: live preview, autosave, and a warning if two users edit the same report.
"use strict";
(() => {
  const form = document.getElementById("editor"), preview = document.getElementById("preview");
  const text = form.elements.text, title = form.elements.title, revision = form.elements.revision;
  const saved = document.getElementById("saved"), other = document.getElementById("other"), conflict = document.getElementById("conflict");
  const PREVIEW_MS = 400, SAVE_MS = 2000, EDITING_MS = 15000;
  let written = `${title.value}\n${text.value}`; // the text stored on the server
  let theirs = null, saving = false, previewTimer = 0, saveTimer = 0, previews = 0;

  const now = () => `${title.value}\n${text.value}`;
  const say = (message) => { saved.textContent = message; };
  const send = (url) => fetch(url, { method: "POST", body: new FormData(form), headers: { "HX-Request": "true" } });

  async function show() {
    const number = ++previews;
    preview.classList.add("stale");
    try {
      const response = await send(form.dataset.preview);
      if (response.redirected || response.status === 403) return say("You are logged out. Copy your text, then log in again.");
      if (!response.ok) throw new Error(`status ${response.status}`);
      const answer = await response.text();
      if (number !== previews) return; // a newer preview is on its way
      replace(answer);
    } catch (error) {
      say(`No preview (${error.message})`);
    } finally {
      if (number === previews) preview.classList.remove("stale");
    }
  }

  // Keep the elements of figures whose directive did not change, so that they are not fetched and drawn again.
  function replace(html) {
    const page = new DOMParser().parseFromString(html, "text/html");
    const current = new Map([...preview.querySelectorAll(".report-live")].map((figure) => [figure.id, figure]));
    page.body.querySelectorAll(".report-live").forEach((figure) => {
      const existing = current.get(figure.id);
      if (!existing) return;
      current.delete(figure.id);
      figure.replaceWith(existing);
    });
    preview.replaceChildren(...page.body.childNodes);
    document.dispatchEvent(new CustomEvent("parlab:figures"));
    repaginate();
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
      say("Not saved: the server does not respond. Retrying.");
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

  async function announceEditing() {
    if (document.hidden) return;
    try {
      const answer = await (await send(form.dataset.editing)).json();
      other.hidden = !answer.other;
      other.textContent = answer.other ? `${answer.other} also has this report open. If both of you save, the second one gets a conflict warning.` : "";
    } catch { /* the next save reports that the server does not respond */ }
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
    say("Their version loaded");
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
  setInterval(announceEditing, EDITING_MS);

  // ---------- the paper: the preview is as wide as the text of the PDF, and a line shows where its pages end ----------
  const PAPER_WIDTH = 679, PAGE_HEIGHT = 998; // A4 without the margins of the PDF (0.6 and 0.7 inches), in pixels of CSS
  const UNBROKEN = ".report-live, .report-figure, tr, h1, h2, h3, h4, pre";
  function paginate() {
    const sheet = document.getElementById("preview"), width = sheet.parentElement.clientWidth - 2;
    sheet.style.zoom = Math.min(1, width / (PAPER_WIDTH + 116));
    sheet.querySelectorAll(".page-end").forEach((line) => line.remove());
    const scale = sheet.getBoundingClientRect().width / sheet.offsetWidth || 1;
    const begin = sheet.getBoundingClientRect().top, at = (y) => (y - begin) / scale;
    const parts = [...sheet.querySelectorAll(UNBROKEN)].filter((part) => !part.parentElement.closest(UNBROKEN));
    const first = parseFloat(getComputedStyle(sheet).paddingTop), last = sheet.scrollHeight;
    let end = first + PAGE_HEIGHT;
    for (let number = 2; end < last && number < 100; number += 1) {
      // What is not broken, and lies across the end, begins the next page.
      const across = parts.map((part) => part.getBoundingClientRect()).find(({ top, bottom }) => at(top) < end - 1 && at(bottom) > end && at(bottom) - at(top) < PAGE_HEIGHT);
      const cut = across ? at(across.top) : end, line = document.createElement("i");
      line.className = "page-end";
      line.dataset.page = `page ${number}`;
      line.style.top = `${cut - 2}px`;
      sheet.append(line);
      end = cut + PAGE_HEIGHT;
    }
  }
  let paging = 0;
  const repaginate = () => { clearTimeout(paging); paging = setTimeout(paginate, 120); };
  new ResizeObserver(repaginate).observe(preview.parentElement);
  preview.addEventListener("parlab:drawn", repaginate);
  paginate();

  // ---------- the picker: a figure, table or value at the cursor; `/` at the beginning of a line opens it ----------
  const menu = form.querySelector("[data-insert-menu]"), find = menu.querySelector("input");
  const offers = [...menu.querySelectorAll("[data-insert]")];
  function insert(directive) {
    const of = menu.querySelector("[data-insert-experiment]")?.value;
    const words = of ? directive.replace(" }}", ` experiment=${of} }}`) : directive;
    const isAlone = !directive.startsWith("{{ value"), { selectionStart: at, value } = text;
    const before = isAlone && at && !value.slice(0, at).endsWith("\n\n") ? (value[at - 1] === "\n" ? "\n" : "\n\n") : "";
    menu.open = false;
    text.focus();
    text.setRangeText(`${before}${words}${isAlone ? "\n\n" : ""}`, at, text.selectionEnd, "end");
    text.dispatchEvent(new Event("input", { bubbles: true }));
  }
  menu.addEventListener("toggle", () => { if (menu.open) { find.value = ""; offers.forEach((offer) => { offer.hidden = false; }); find.focus(); } });
  find.addEventListener("input", () => offers.forEach((offer) => { offer.hidden = !offer.textContent.toLowerCase().includes(find.value.toLowerCase()); }));
  find.addEventListener("keydown", (event) => { if (event.key === "Enter") { event.preventDefault(); offers.find((offer) => !offer.hidden)?.click(); } });
  menu.addEventListener("click", (event) => { const offer = event.target.closest("[data-insert]"); if (offer) insert(offer.dataset.insert); });
  text.addEventListener("keydown", (event) => {
    const line = text.value.slice(0, text.selectionStart).split("\n").pop();
    if (event.key === "/" && !line.trim()) { event.preventDefault(); menu.open = true; }
  });
})();
