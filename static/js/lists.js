// Lists whose rows can be chosen: say how many are, choose all, and keep buttons off that have nothing to act on.
"use strict";
(() => {
  const boxes = () => [...document.querySelectorAll("td.choice input[type=checkbox]")];
  let before = new Set(); // what was chosen when a poll replaces the rows

  function show() {
    const all = boxes(), chosen = all.filter((box) => box.checked).length;
    for (const button of document.querySelectorAll("[data-needs-choice]")) button.disabled = chosen < Number(button.dataset.needsChoice || 1);
    for (const words of document.querySelectorAll("[data-chosen]")) {
      words.dataset.before ??= words.textContent;
      words.textContent = chosen ? `${chosen} selected` : words.dataset.before;
    }
    for (const head of document.querySelectorAll("[data-choose-all]")) {
      head.checked = chosen > 0 && chosen === all.length;
      head.indeterminate = chosen > 0 && chosen < all.length;
    }
  }

  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-choose-all]")) boxes().forEach((box) => { box.checked = event.target.checked; });
    if (event.target.matches("[data-choose-all], td.choice input")) show();
  });
  document.addEventListener("htmx:beforeSwap", () => { before = new Set(boxes().filter((box) => box.checked).map((box) => box.value)); });
  document.addEventListener("htmx:afterSwap", () => {
    boxes().forEach((box) => { box.checked = before.has(box.value); });
    show();
  });
  // A menu closes when one clicks beside it, and with Escape.
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
