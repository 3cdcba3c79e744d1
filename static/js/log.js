// The log keeps its scroll position while lines arrive, or follows new lines if the box is checked. The chosen node or
// rank is part of the address, so that a link shows the same lines.
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

  const choice = document.getElementById("log-choice");
  choice?.addEventListener("change", ({ target }) => {
    // A rank belongs to one node: the other field would contradict the new choice.
    if (target.name === "node" && choice.elements.rank) choice.elements.rank.value = "";
    if (target.name === "rank" && choice.elements.node) choice.elements.node.value = "";
    const page = new URL(location.href);
    for (const name of ["node", "rank"]) {
      const value = choice.elements[name]?.value;
      if (value) page.searchParams.set(name, value);
      else page.searchParams.delete(name);
    }
    history.replaceState(history.state, "", page);
    document.getElementById("found").replaceChildren();
  }, true);
  document.addEventListener("htmx:afterSwap", () => { if (follow.checked) toEnd(); });
})();
