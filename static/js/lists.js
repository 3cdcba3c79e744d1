// Lists with selectable rows: show the number of selected rows, select all, disable buttons without a selection.
"use strict";
(() => {
  const boxes = () => [...document.querySelectorAll("td.choice input[type=checkbox], .tick input")];
  let before = new Set(); // the selection, while a poll replaces the rows

  function show() {
    const all = boxes(), chosen = all.filter((box) => box.checked).length;
    for (const button of document.querySelectorAll("[data-needs-choice]")) button.disabled = chosen < Number(button.dataset.needsChoice || 1);
    for (const label of document.querySelectorAll("[data-chosen]")) {
      label.dataset.before ??= label.textContent;
      label.textContent = chosen ? `${chosen} selected` : label.dataset.before;
    }
    for (const head of document.querySelectorAll("[data-choose-all]")) {
      head.checked = chosen > 0 && chosen === all.length;
      head.indeterminate = chosen > 0 && chosen < all.length;
    }
  }

  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-choose-all]")) boxes().forEach((box) => { box.checked = event.target.checked; });
    if (event.target.matches("[data-choose-all], td.choice input, .tick input")) show();
  });
  document.addEventListener("htmx:beforeSwap", () => { before = new Set(boxes().filter((box) => box.checked).map((box) => box.value)); });
  document.addEventListener("htmx:afterSwap", () => {
    boxes().forEach((box) => { box.checked = before.has(box.value); });
    show();
  });
  // Close a menu on a click outside of it, and on Escape.
  document.addEventListener("click", (event) => {
    for (const menu of document.querySelectorAll("details.menu[open]")) if (!menu.contains(event.target)) menu.open = false;
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    for (const menu of document.querySelectorAll("details.menu[open]")) { menu.open = false; menu.querySelector("summary").focus(); }
  });
  addEventListener("pageshow", show);
  show();
})();
