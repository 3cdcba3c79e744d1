// Search among the fields of the sweep builder, by name, path and explanation; all words must match.
"use strict";
(() => {
  const search = () => document.getElementById("field-search");

  function filter() {
    const words = search().value.toLowerCase().split(/\s+/).filter(Boolean);
    const fields = document.getElementById("fields").closest("section");
    fields.classList.toggle("searching", words.length > 0);
    let matches = 0;
    for (const row of fields.querySelectorAll(".builder-field")) {
      const isMatch = words.every((word) => row.dataset.search.includes(word));
      row.classList.toggle("match", isMatch);
      matches += isMatch;
    }
    for (const section of fields.querySelectorAll(".builder-section")) {
      section.classList.toggle("match", Boolean(section.querySelector(".match")));
      if (words.length && section.querySelector(".match")) section.open = true;
    }
    document.getElementById("no-match").hidden = matches > 0;
    document.getElementById("field-matches").textContent = words.length ? `${matches} fields match` : "";
  }

  document.addEventListener("input", (event) => {
    if (event.target !== search()) return;
    event.stopPropagation(); // a search changes no point
    filter();
  }, true);
  document.addEventListener("keydown", (event) => {
    if (event.target !== search()) return;
    if (event.key === "Escape" && search().value) { event.preventDefault(); search().value = ""; filter(); }
    if (event.key !== "Enter" && event.key !== "ArrowDown") return;
    event.preventDefault();
    document.querySelector(".searching .builder-field.match :is(select, textarea, input:not([type=hidden]), a)")?.focus();
  });
  document.addEventListener("builder:replaced", () => { if (search().value) filter(); });
})();
