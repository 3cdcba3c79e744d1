// The palette: Ctrl+K anywhere. The server answers as one types; an answer that is older than the query is dropped.
"use strict";
(() => {
  const dialog = document.getElementById("palette");
  if (!dialog) return;
  const input = dialog.querySelector("input[role=combobox]"), list = document.getElementById("palette-list");
  const beside = dialog.querySelector(".pp"), pickedText = dialog.querySelector(".picked");
  const previews = new Map();
  let wait = 0, request = null, selected = null, hasAnswer = "", previewOf = "";

  const options = () => [...list.querySelectorAll("[role=option]")];

  function picked() {
    try { return JSON.parse(sessionStorage.getItem("parlab-compare") || "[]"); } catch { return []; }
  }

  function pick(run) {
    const runs = picked(), rest = runs.filter((other) => other !== run);
    const next = rest.length < runs.length ? rest : [...runs, run].slice(-20);
    try { sessionStorage.setItem("parlab-compare", JSON.stringify(next)); } catch { /* private window: no comparison is kept */ }
    showPicked();
  }

  function showPicked() {
    const runs = picked();
    pickedText.textContent = runs.length ? `${runs.length} to compare: type compare` : "";
    for (const option of options()) option.classList.toggle("picked", runs.includes(option.dataset.run));
  }

  function select(option) {
    selected?.setAttribute("aria-selected", "false");
    selected = option || null;
    if (!selected) {
      input.removeAttribute("aria-activedescendant");
      beside.replaceChildren();
      return;
    }
    selected.setAttribute("aria-selected", "true");
    selected.scrollIntoView({ block: "nearest" });
    input.setAttribute("aria-activedescendant", selected.id);
    show(selected.dataset.preview || "");
  }

  async function show(url) {
    previewOf = url;
    if (!url) return beside.replaceChildren();
    if (!previews.has(url)) {
      // A row that is only passed over asks nothing.
      await new Promise((done) => { setTimeout(done, 80); });
      if (previewOf !== url) return;
      try {
        const response = await fetch(url, { headers: { "X-Requested-With": "palette" } });
        previews.set(url, response.ok ? await response.text() : "");
      } catch { return; }
    }
    // The server escapes all texts of this part.
    if (previewOf === url) beside.innerHTML = previews.get(url);
  }

  async function ask() {
    const query = input.value.trim();
    request?.abort();
    request = new AbortController();
    const parameters = new URLSearchParams({ q: query, at: location.pathname, picked: picked().join(",") });
    try {
      const response = await fetch(`${dialog.dataset.url}?${parameters}`, { signal: request.signal });
      if (response.redirected) return location.reload(); // the session has ended
      if (!response.ok) throw new Error(`status ${response.status}`);
      list.innerHTML = await response.text(); // escaped by the server
      hasAnswer = query;
    } catch (error) {
      if (error.name === "AbortError") return;
      list.textContent = "The server did not answer. Type again to retry.";
    }
    // A list of choices without a choice is none: what remains is a message.
    list.setAttribute("role", options().length ? "listbox" : "group");
    selected = null;
    select(options()[0]);
    showPicked();
  }

  function later() {
    clearTimeout(wait);
    wait = setTimeout(ask, 60);
  }

  function open(text = "") {
    if (dialog.open) return close();
    document.querySelectorAll("details.menu[open]").forEach((menu) => { menu.open = false; });
    previews.clear();
    input.value = text;
    list.replaceChildren();
    dialog.showModal();
    input.focus();
    ask();
  }

  function close() {
    request?.abort();
    clearTimeout(wait);
    dialog.close();
  }

  function run(option, isNewTab) {
    if (!option) return;
    if (option.dataset.ask) return submit(option);
    if (!option.href) return take(option);
    if (isNewTab) return window.open(option.href, "_blank", "noopener");
    if (option.href.includes("/compare/")) { try { sessionStorage.removeItem("parlab-compare"); } catch { /* nothing is kept */ } }
    close();
    location.assign(option.href);
  }

  function submit(option) {
    if (!confirm(option.dataset.ask)) return;
    const form = dialog.querySelector("form");
    form.action = option.href;
    form.submit();
  }

  function take(option) {
    if (!option?.dataset.term) return false;
    // The value of a field follows at once; a finished term leaves room for the next.
    input.value = /[:=<>]$/.test(option.dataset.term) ? option.dataset.term : `${option.dataset.term} `;
    input.focus();
    ask();
    return true;
  }

  function move(by) {
    const all = options();
    if (!all.length) return;
    const at = all.indexOf(selected);
    select(all[(at + by + all.length) % all.length]);
  }

  const keys = {
    ArrowDown: () => move(1),
    ArrowUp: () => move(-1),
    PageDown: () => move(Math.min(5, options().length - 1 - options().indexOf(selected))),
    PageUp: () => move(-Math.min(5, options().indexOf(selected))),
    Tab: (event) => take(event.shiftKey ? null : selected?.dataset.term ? selected : options().find((option) => option.dataset.term)),
    Escape: () => close(),
  };

  input.addEventListener("input", later);
  dialog.addEventListener("keydown", async (event) => {
    if (event.isComposing) return;
    if (event.key === "Enter") {
      event.preventDefault();
      if (event.ctrlKey || event.metaKey) { if (selected?.dataset.run) pick(selected.dataset.run); return; }
      // Fast typists press Enter before the answer to their last letter.
      if (input.value.trim() !== hasAnswer) { clearTimeout(wait); await ask(); }
      run(selected, event.altKey);
    } else if (keys[event.key]) {
      event.preventDefault();
      event.stopPropagation();
      keys[event.key](event);
    }
  });
  list.addEventListener("mousemove", (event) => {
    const option = event.target.closest("[role=option]");
    if (option && option !== selected) select(option);
  });
  list.addEventListener("click", (event) => {
    const option = event.target.closest("[role=option]");
    if (!option || (event.ctrlKey && !option.dataset.run && option.href)) return;
    event.preventDefault();
    if (event.ctrlKey || event.metaKey) { if (option.dataset.run) pick(option.dataset.run); } else run(option, false);
  });
  dialog.addEventListener("click", (event) => { if (event.target === dialog) close(); });
  document.addEventListener("click", (event) => {
    const opener = event.target.closest("[data-palette]");
    if (!opener || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    open(opener.dataset.palette || "");
  });
  document.addEventListener("keydown", (event) => {
    if (event.key.toLowerCase() !== "k" || !(event.ctrlKey || event.metaKey) || event.altKey || event.shiftKey) return;
    event.preventDefault();
    open();
  });
})();
