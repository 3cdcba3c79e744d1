// The log keeps its scroll position while lines arrive, or follows new lines if the box is checked.
"use strict";
(() => {
  const follow = document.getElementById("follow");
  const log = () => document.getElementById("log");
  let top = 0;
  const toEnd = () => { const element = log(); if (element) element.scrollTop = element.scrollHeight; };
  if (follow.checked) toEnd();
  follow.addEventListener("change", () => { if (follow.checked) toEnd(); });
  document.addEventListener("scroll", (event) => {
    if (event.target.id !== "log") return;
    const { scrollTop, scrollHeight, clientHeight } = event.target;
    follow.checked = scrollHeight - scrollTop - clientHeight < 8;
  }, true);
  document.addEventListener("htmx:beforeSwap", (event) => { if (event.detail.target.id === "log") top = log().scrollTop; });
  document.addEventListener("htmx:afterSwap", (event) => {
    if (event.detail.target.id !== "log") return;
    if (follow.checked) toEnd(); else log().scrollTop = top;
  });
})();
