// A dashboard on a wall: the panels that fit on the screen, one page after another, read again now and then. Escape ends it.
"use strict";
(() => {
  const wall = document.querySelector(".wall[data-wall]");
  if (!wall) return;
  const PAGE_S = 20, RELOAD_S = 300;
  const panels = [...wall.querySelectorAll("[data-panel]")], bar = wall.querySelector(".wall-foot .bar i");
  const begun = Date.now();
  let pages = [], page = 0, seconds = 0;

  // A page takes panels until the screen is full; a panel higher than the screen has a page of its own.
  function divide() {
    panels.forEach((panel) => panel.classList.remove("away"));
    const top = wall.querySelector("[data-panels]").getBoundingClientRect().top, room = innerHeight - top - 40;
    pages = [];
    let begin = 0, own = [];
    for (const panel of panels) {
      const { top: from, bottom } = panel.getBoundingClientRect();
      if (own.length && bottom - begin > room) { pages.push(own); own = []; }
      if (!own.length) begin = from;
      own.push(panel);
    }
    if (own.length) pages.push(own);
    show(Math.min(page, Math.max(0, pages.length - 1)));
  }
  function show(number) {
    page = number;
    seconds = 0;
    for (const panel of panels) panel.classList.toggle("away", pages.length > 1 && !pages[page].includes(panel));
    wall.querySelector("[data-wall-page]").textContent = pages.length > 1 ? `${page + 1} of ${pages.length}` : "";
    dispatchEvent(new Event("resize"));
  }
  function tick() {
    wall.querySelector("[data-wall-clock]").textContent = new Date().toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
    seconds += 1;
    bar.parentElement.hidden = pages.length < 2;
    bar.style.width = `${100 * seconds / PAGE_S}%`;
    if (seconds < PAGE_S) return;
    if (Date.now() - begun > 1000 * RELOAD_S) return location.reload();
    if (pages.length > 1) show((page + 1) % pages.length); else seconds = 0;
  }
  let laid = 0;
  addEventListener("resize", (event) => { if (event.isTrusted) { clearTimeout(laid); laid = setTimeout(divide, 200); } });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { const query = new URLSearchParams(location.search); query.delete("wall"); location.assign(`${wall.dataset.wall}?${query}`); }
    if (event.key === "ArrowRight" && pages.length) show((page + 1) % pages.length);
    if (event.key === "ArrowLeft" && pages.length) show((page + pages.length - 1) % pages.length);
  });
  addEventListener("load", divide);
  divide();
  setInterval(tick, 1000);
})();
