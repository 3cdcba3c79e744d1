// A mark in a text and the value beside it show each other: the pointer or the focus on one lights all of its name.
"use strict";
(() => {
  function light(name) {
    for (const each of document.querySelectorAll("[data-name].lit")) each.classList.remove("lit");
    if (name) for (const each of document.querySelectorAll(`[data-name="${CSS.escape(name)}"]`)) each.classList.add("lit");
  }
  document.addEventListener("pointerover", (event) => light(event.target.closest?.("[data-name]")?.dataset.name));
  // A click on a value leads to its last mark.
  document.addEventListener("click", (event) => {
    const value = event.target.closest(".vls [data-name]");
    const marks = value && document.querySelectorAll(`mark[data-name="${CSS.escape(value.dataset.name)}"]`);
    marks?.[marks.length - 1]?.scrollIntoView({ block: "center" });
  });
})();
