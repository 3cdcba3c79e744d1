// The paste box: 300 ms after the last change the server reads the text, and shows what it understood. Nothing is stored.
"use strict";
for (const form of document.querySelectorAll("form[data-paste]")) {
  const text = form.elements.text, answer = document.getElementById(form.dataset.answer), limit = Number(form.dataset.limit);
  const button = form.querySelector("[data-import]"), label = button.querySelector("span"), example = form.querySelector("[data-example]");
  let wait = 0, request = null, read = "";

  const bytes = () => new Blob([text.value]).size;

  function offer(state, runs) {
    read = state;
    example.hidden = Boolean(text.value.trim());
    form.action = state === "import" ? form.dataset.now : location.origin + form.dataset.first;
    label.textContent = state === "import" ? (runs ? `Import ${runs} run${runs === "1" ? "" : "s"}` : "Import") : state === "guess" ? "Guess its format" : "Read it";
    button.disabled = state === "none";
  }

  function say(message) {
    const line = document.createElement("p");
    line.className = "problem failed";
    line.setAttribute("role", "alert");
    line.textContent = message;
    answer.replaceChildren(line);
    offer("none");
  }

  const sample = form.querySelector("[data-example-text]").content.textContent;
  const notOfExample = () => {
    if (form.elements.name.value === "example.log" && text.value !== sample) form.elements.name.value = form.elements.name.defaultValue;
  };

  async function look() {
    request?.abort();
    notOfExample();
    if (!text.value.trim()) {
      answer.replaceChildren();
      answer.classList.remove("waits");
      return offer("");
    }
    if (bytes() > limit) return say("The text is too long for pasting. Save it as a file and drop the file here.");
    request = new AbortController();
    answer.classList.add("waits");
    try {
      const response = await fetch(form.dataset.preview, { method: "POST", body: new FormData(form), signal: request.signal });
      if (response.redirected) return location.reload(); // the session has ended
      if (!response.ok) throw new Error(`The server answered with status ${response.status}. Nothing was stored; reload the page.`);
      answer.innerHTML = await response.text(); // escaped by the server
      mark();
      const shown = answer.querySelector("[data-read]");
      offer(shown?.dataset.read === "none" && answer.querySelector("[data-doubtful]") ? "guess" : shown?.dataset.read || "none", shown?.dataset.runs);
    } catch (error) {
      if (error.name !== "AbortError") say(error.message || "The server did not answer. Change the text to try again.");
    } finally {
      answer.classList.remove("waits");
    }
  }

  // The text with its numbers marked takes the place of the box; without a place for it, it is left out.
  const marked = document.getElementById(form.dataset.markedIn || "");
  function view(isMarked) {
    if (!marked) return;
    marked.hidden = !isMarked;
    text.hidden = isMarked;
  }
  function mark() {
    const parts = [...answer.querySelectorAll("[data-marked]")];
    parts.forEach((part) => part.remove());
    if (!marked || parts.length !== 1) return view(false);
    marked.querySelector("[data-marked-body]").replaceChildren(...parts[0].childNodes);
    marked.querySelector("[data-marked-name]").textContent = form.elements.name.value;
    const lines = text.value.replace(/\n$/, "").split("\n").length, size = bytes();
    marked.querySelector("[data-marked-size]").textContent = `${lines.toLocaleString("en")} line${lines === 1 ? "" : "s"}, ${size < 1024 ? `${size} B` : `${(size / 1024).toFixed(size < 102400 ? 1 : 0)} KiB`}`;
    view(document.activeElement !== text || form.dataset.pasted === "1");
  }
  marked?.addEventListener("click", (event) => {
    if (!event.target.closest("[data-edit], [data-clear]")) return;
    if (event.target.closest("[data-clear]")) text.value = "";
    form.dataset.pasted = "";
    view(false);
    text.focus();
    look();
  });
  // Pasting anywhere on the page that is no field replaces the text.
  document.addEventListener("paste", (event) => {
    if (event.target === text) { form.dataset.pasted = "1"; return; }
    const pasted = marked && !event.target.closest?.("input, textarea, select, [contenteditable]") && event.clipboardData.getData("text");
    if (!pasted) return;
    event.preventDefault();
    text.value = pasted;
    form.dataset.pasted = "1";
    look();
  });

  example.addEventListener("click", () => {
    text.value = sample;
    form.elements.name.value = "example.log";
    form.dataset.pasted = "1";
    look();
  });

  function later() {
    clearTimeout(wait);
    wait = setTimeout(look, 300);
  }

  // A small file is text to look at; a large one, or one that is no text, takes the way of the form of files.
  async function take(files) {
    const [file] = files;
    if (files.length === 1 && file.size <= limit) {
      const content = await file.text();
      if (!content.slice(0, 4096).includes("\0")) {
        text.value = content;
        form.elements.name.value = file.name;
        return look();
      }
    }
    const input = document.getElementById("files");
    if (!input) return say("This file is too large to look at here. Import it on the page Import.");
    input.files = files;
    input.dispatchEvent(new Event("change"));
    document.getElementById("import").requestSubmit();
  }

  form.dataset.first = new URL(form.action).pathname;
  text.addEventListener("input", (event) => { if (event.inputType !== "insertFromPaste") form.dataset.pasted = ""; later(); });
  document.addEventListener("change", (event) => { if (event.target.form === form && event.target.type === "radio") event.target.closest("li")?.classList.add("judged"); });
  form.addEventListener("change", (event) => { if (event.target !== text) later(); }); // choices of findings stand outside
  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !button.disabled) { event.preventDefault(); form.requestSubmit(button); }
  });
  form.addEventListener("submit", (event) => {
    if (!text.value.trim()) { event.preventDefault(); text.focus(); return; }
    if (!read && !form.dataset.sent) { event.preventDefault(); look(); return; }
    setTimeout(() => { button.disabled = true; label.textContent = "Importing…"; });
  });
  for (const name of ["dragenter", "dragover"]) form.addEventListener(name, (event) => { event.preventDefault(); form.classList.add("over"); });
  for (const name of ["dragleave", "drop"]) form.addEventListener(name, () => form.classList.remove("over"));
  form.addEventListener("drop", (event) => {
    event.preventDefault();
    if (event.dataTransfer.files.length) take(event.dataTransfer.files);
    else if (event.dataTransfer.getData("text")) { text.value = event.dataTransfer.getData("text"); look(); }
  });
  addEventListener("pageshow", () => { if (text.value.trim()) look(); else offer(""); });
}
