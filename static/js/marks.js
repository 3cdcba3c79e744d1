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

// A link to a figure lights its marks.
addEventListener("DOMContentLoaded", () => {
  const name = new URLSearchParams(location.search).get("figure");
  const marks = name ? [...document.querySelectorAll("mark[data-name]")].filter((mark) => mark.dataset.name === name || (name === "loss" && mark.dataset.name.endsWith("loss")) || (name === "memory" && mark.dataset.name.endsWith("_bytes"))) : [];
  for (const mark of marks) mark.classList.add("lit");
  const last = marks[marks.length - 1];
  last?.closest(".marked-lines").scrollTo({ top: last.offsetTop - last.closest(".marked-lines").offsetTop - 80 });
});
