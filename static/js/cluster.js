// Cluster: the colour of the squares, and the node that is open beside them.
"use strict";
(() => {
  const page = document.querySelector("[data-cluster]");
  const side = document.getElementById("node");

  function show() {
    page.querySelectorAll("[data-colour-by]").forEach((button) => {
      const isChosen = button.dataset.colourBy === page.dataset.colour;
      button.classList.toggle("on", isChosen);
      button.setAttribute("aria-pressed", String(isChosen));
    });
    page.querySelectorAll("[data-node]").forEach((tile) => {
      const isOpen = page.classList.contains("is-open") && new URL(tile.href).pathname === location.pathname;
      tile.classList.toggle("on", isOpen);
      if (isOpen) tile.setAttribute("aria-current", "true"); else tile.removeAttribute("aria-current");
    });
  }

  function colour(name) {
    page.dataset.colour = name;
    const address = new URL(location.href);
    address.searchParams.set("colour", name);
    history.replaceState(history.state, "", address);
    show();
  }

  // Opening a node changes the address: the colour stays in it.
  function keep() {
    const address = new URL(location.href), first = page.querySelector("[data-colour-by]")?.dataset.colourBy;
    if (!first || page.dataset.colour === (address.searchParams.get("colour") || first)) return;
    address.searchParams.set("colour", page.dataset.colour);
    history.replaceState(history.state, "", address);
  }

  function close() {
    page.classList.remove("is-open");
    side.replaceChildren();
    history.pushState(null, "", document.getElementById("cluster").dataset.all + location.search);
    show();
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-colour-by]");
    if (button) return colour(button.dataset.colourBy);
    if (!event.target.closest("[data-close]")) return;
    event.preventDefault();
    close();
  });
  document.addEventListener("keydown", (event) => {
    if (event.target.closest("input, textarea, select, [contenteditable], dialog[open]")) return;
    if (event.ctrlKey || event.metaKey || event.altKey || !page.classList.contains("is-open")) return;
    if (event.key === "Escape") return close();
    const by = { ArrowLeft: "-1", ArrowRight: "1" }[event.key];
    if (by && !event.target.closest(".scroll")) side.querySelector(`[data-step="${by}"]`)?.click();
  });
  document.addEventListener("htmx:afterSettle", (event) => {
    if (event.detail.target.id === "node") page.classList.toggle("is-open", side.childElementCount > 0);
    keep();
    show();
  });
  show();
})();
