// Behaviour shared by many pages: keyboard shortcuts, confirmations, double-click protection, copying.
"use strict";
(() => {
  let leader = 0; // when `g` was pressed; the next letter selects the page

  const rows = () => [...document.querySelectorAll("main table.rows > tbody > tr, main [data-row]")];
  function move(by) {
    const all = rows(), at = all.findIndex((row) => row.classList.contains("current"));
    const next = all[Math.max(0, Math.min(all.length - 1, at < 0 ? (by > 0 ? 0 : all.length - 1) : at + by))];
    if (!next) return;
    all[at]?.classList.remove("current");
    next.classList.add("current");
    next.scrollIntoView({ block: "nearest" });
    next.querySelector("th a, a")?.focus();
  }

  // The choice is kept by theme.js, which applies it before the first paint.
  function collapse() {
    const tight = document.documentElement.classList.toggle("tight");
    try { localStorage.setItem("parlab-menu", tight ? "tight" : ""); } catch { /* private window: for this page only */ }
  }

  const keys = {
    "/": () => {
      const filter = document.querySelector("main [data-filter], #search");
      if (!filter) return document.querySelector("[data-palette]")?.click();
      filter.focus();
      filter.select();
    },
    "[": () => collapse(),
    "?": () => document.getElementById("keys")?.showModal(),
    j: () => move(1),
    k: () => move(-1),
    x: () => document.querySelector("tr.current input[type=checkbox], [data-row].current input[type=checkbox]")?.click(),
  };

  document.addEventListener("keydown", (event) => {
    if (event.target.closest("input, textarea, select, [contenteditable], dialog[open]")) return;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const goes = Date.now() - leader < 1500 && document.querySelector(`.rail [data-key="${CSS.escape(event.key)}"]`);
    leader = event.key === "g" ? Date.now() : 0;
    const act = goes ? () => goes.click() : keys[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
  document.addEventListener("click", (event) => { if (event.target.closest("[data-keys]")) keys["?"](); if (event.target.closest("[data-collapse]")) collapse(); });
})();

// A menu closes on Escape, on a click elsewhere, and when the focus leaves it.
const closeMenus = (target) => document.querySelectorAll("details.menu[open]").forEach((menu) => { if (!menu.contains(target)) menu.open = false; });
document.addEventListener("click", (event) => closeMenus(event.target));
document.addEventListener("focusin", (event) => closeMenus(event.target));
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  document.activeElement?.closest("details.menu[open]")?.querySelector("summary").focus();
  closeMenus(null);
});

document.addEventListener("submit", (event) => {
  const form = event.target;
  const question = event.submitter?.dataset.ask || form.dataset.confirm;
  if (question && !confirm(question)) {
    event.preventDefault();
    return;
  }
  if ("once" in form.dataset) {
    // Disabled buttons prevent a second submission while the form is being sent.
    setTimeout(() => form.querySelectorAll("button").forEach((button) => { button.disabled = true; }));
  }
});
// Going back restores the page from the browser cache, where the button is still disabled.
addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });

// The error of a field goes when the field is mended, as far as the browser can tell.
document.addEventListener("input", ({ target }) => {
  if (target.getAttribute?.("aria-invalid") !== "true" || !target.checkValidity() || (target.required && !target.value.trim())) return;
  const error = (target.getAttribute("aria-describedby") || "").split(" ").map((id) => document.getElementById(id)).find((part) => part?.classList.contains("field-error"));
  if (!error) return;
  target.setAttribute("aria-invalid", "false");
  error.textContent = "";
});

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const source = document.querySelector(button.dataset.copy);
  let copied = true;
  try {
    await navigator.clipboard.writeText(source.textContent);
  } catch {
    // The clipboard needs TLS. Without it, select the text so that Ctrl+C copies it.
    getSelection().selectAllChildren(source);
    copied = document.execCommand("copy");
  }
  const before = button.textContent;
  button.textContent = copied ? "Copied" : "Selected: press Ctrl+C";
  setTimeout(() => { button.textContent = before; }, 1500);
});

// Hidden pages do not poll.
document.addEventListener("htmx:beforeRequest", (event) => {
  if (document.hidden) event.preventDefault();
});
// A choice that takes effect at once, such as the project in the menu.
document.addEventListener("change", (event) => {
  if (event.target.matches?.("select[data-submit]")) event.target.form.requestSubmit();
});
// A part that polls says when it has had no answer twice in a row: its numbers may be old. Other parts go on.
document.addEventListener("htmx:afterRequest", ({ detail: { elt, successful } }) => {
  if (!/\bevery\b/.test(elt.getAttribute("hx-trigger") || "")) return;
  elt.unanswered = successful ? 0 : (elt.unanswered || 0) + 1;
  const said = elt.querySelector(":scope > .stale");
  if (successful) said?.remove();
  if (elt.unanswered < 2 || said) return;
  const notice = Object.assign(document.createElement("p"), { className: "stale sm", textContent: "The server does not answer; this may be old. " });
  notice.setAttribute("role", "status");
  notice.append(Object.assign(document.createElement("a"), { className: "t", href: location.href, textContent: "Retry" }));
  elt.prepend(notice);
});
// When the session has ended, polls are redirected to the login page. Reload instead of swapping it in.
document.addEventListener("htmx:beforeSwap", (event) => {
  const url = event.detail.xhr.responseURL;
  if (url && new URL(url).pathname.endsWith("/login/")) {
    event.detail.shouldSwap = false;
    location.reload();
  }
});

// Screen readers do not announce content replaced by polls. This status line announces changed states.
(() => {
  const state = () => document.querySelector("[data-announce]")?.textContent.replace(/\s+/g, " ").trim() || "";
  let announced = state();
  document.addEventListener("htmx:afterSwap", () => {
    if (state() === announced) return;
    announced = state();
    document.getElementById("announce").textContent = announced;
  });
})();
// On a phone the open tab may stand beyond the edge.
for (const open of document.querySelectorAll(".tabs .on")) open.parentElement.scrollLeft = open.offsetLeft - open.parentElement.offsetLeft - 16;
