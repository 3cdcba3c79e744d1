// Small behaviours that many pages share: search key, second clicks, confirmations, copying.
"use strict";
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, textarea, select, [contenteditable]");
  if (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const search = document.getElementById("search");
  if (!search) return;
  event.preventDefault();
  search.focus();
  search.select();
});

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.dataset.confirm && !confirm(form.dataset.confirm)) {
    event.preventDefault();
    return;
  }
  if ("once" in form.dataset) {
    // A button that is disabled while the form is being sent takes no second click.
    setTimeout(() => form.querySelectorAll("button").forEach((button) => { button.disabled = true; }));
  }
});
// Going back shows the page from the browser's memory, where the button is still disabled.
addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const source = document.querySelector(button.dataset.copy);
  let copied = true;
  try {
    await navigator.clipboard.writeText(source.textContent);
  } catch {
    // Without TLS there is no clipboard: select the text, so that a key copies it.
    getSelection().selectAllChildren(source);
    copied = document.execCommand("copy");
  }
  const before = button.textContent;
  button.textContent = copied ? "Copied" : "Selected: press Ctrl+C";
  setTimeout(() => { button.textContent = before; }, 1500);
});

// Polls of a page that nobody sees would only cost the server.
document.addEventListener("htmx:beforeRequest", (event) => {
  if (document.hidden) event.preventDefault();
});
// When the session has ended, a poll is led to the login page: go there, do not paint it into this one.
document.addEventListener("htmx:beforeSwap", (event) => {
  const url = event.detail.xhr.responseURL;
  if (url && new URL(url).pathname.endsWith("/login/")) {
    event.detail.shouldSwap = false;
    location.reload();
  }
});

// What a poll replaces is not read out; this line of the page stays, and says when the states have changed.
(() => {
  const state = () => document.querySelector("[data-announce]")?.textContent.replace(/\s+/g, " ").trim() || "";
  let said = state();
  document.addEventListener("htmx:afterSwap", () => {
    if (state() === said) return;
    said = state();
    document.getElementById("announce").textContent = said;
  });
})();
