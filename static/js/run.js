// The page of a run: the definition of a term beside its part of the bar, progress in the icon of the page, panels on the full screen.
"use strict";
(() => {
  const GAP = 8;
  document.addEventListener("click", (event) => {
    const link = event.target.closest("[data-term]");
    const note = link && document.getElementById(`note-${link.dataset.term}`);
    if (!note || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    note.showPopover();
    const at = link.getBoundingClientRect(), { width, height } = note.getBoundingClientRect();
    note.style.left = `${Math.max(GAP, Math.min(at.left, innerWidth - width - GAP))}px`;
    note.style.top = `${at.bottom + GAP + height < innerHeight ? at.bottom + GAP : Math.max(GAP, at.top - height - GAP)}px`;
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-full]");
    if (!button) return;
    if (document.fullscreenElement) document.exitFullscreen();
    else button.closest(".panel").requestFullscreen?.();
  });

  document.addEventListener("keydown", (event) => {
    if (event.key !== "f" || event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) return;
    document.querySelector(".panel:hover [data-full], .panel:focus-within [data-full]")?.click();
  });

  // The icon of the page fills with the progress, so that a tab in the background shows it.
  const icon = document.querySelector("link[rel=icon]"), plain = icon?.href, title = document.title.replace(/^\d+ % · /, "");
  function progress() {
    const percent = document.getElementById("live")?.dataset.percent;
    document.title = percent ? `${percent} % · ${title}` : title;
    if (!icon) return;
    if (!percent) { icon.href = plain; return; }
    const turn = 2 * Math.PI * 6, drawn = (turn * Number(percent)) / 100;
    const circle = (colour, dash) => `<circle cx="8" cy="8" r="6" fill="none" stroke="${colour}" stroke-width="3"${dash}/>`;
    icon.href = `data:image/svg+xml,${encodeURIComponent(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">${circle("#b4bcc8", "")}${circle("#0b62c4", ` stroke-dasharray="${drawn} ${turn}" transform="rotate(-90 8 8)"`)}</svg>`)}`;
  }
  progress();
  // What a person has opened in the head stays until it is closed.
  document.addEventListener("htmx:beforeSwap", (event) => {
    if (event.detail.target.id === "live" && document.querySelector("#live details[open], #live :popover-open")) event.detail.shouldSwap = false;
  });
  document.addEventListener("htmx:afterSwap", progress);

  // Sections of earlier versions are tabs now.
  const MOVED = { "log-title": "log/", ranks: "ranks/", timeline: "ranks/", machine: "system/", members: "system/", links: "system/", time: "time/", findings: "details/", config: "details/",
    environment: "details/", command: "details/", attempts: "details/", snapshots: "details/", traceback: "log/", note: "details/" };
  const hash = location.hash.slice(1), tab = MOVED[hash];
  if (tab && /\/runs\/\d+\/$/.test(location.pathname) && !document.getElementById(hash)) location.replace(`${location.pathname}${tab}${location.hash}`);

  // The cursor of the ranks: a click or an arrow key moves it; all parts and the address follow.
  const ranks = () => document.getElementById("ranks");
  let moves = 0; // the newest counts: a person may hold an arrow key
  async function show(address) {
    const move = (moves += 1), left = document.querySelector(".steplog")?.scrollLeft || 0;
    const response = await fetch(address);
    if (!response.ok || response.redirected) return location.assign(address);
    const fresh = new DOMParser().parseFromString(await response.text(), "text/html").getElementById("ranks");
    if (move !== moves || !fresh) return;
    ranks().replaceWith(fresh);
    htmx.process(fresh);
    document.querySelector(".steplog")?.scrollTo({ left });
  }
  async function move(address) {
    const url = new URL(address, location.href);
    history.pushState({ ranks: true }, "", url);
    await show(url.pathname + url.search);
    ranks()?.querySelector("td.cursor a")?.focus({ preventScroll: true });
  }
  const ARROWS = { ArrowLeft: "left", ArrowRight: "right", ArrowUp: "up", ArrowDown: "down" };
  if (ranks()) {
    document.addEventListener("click", (event) => {
      const link = event.target.closest("[data-cursor]");
      if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
      event.preventDefault();
      move(link.getAttribute("href"));
    });
    document.addEventListener("keydown", (event) => {
      const way = ARROWS[event.key];
      if (!way || event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, summary, .steplog, [popover]")) return;
      const address = ranks()?.dataset[way];
      if (!address) return;
      event.preventDefault();
      move(address);
    });
    document.addEventListener("change", (event) => {
      const form = event.target.closest("[data-ranks]");
      if (form) move(`?${new URLSearchParams([...new FormData(form)].filter(([, value]) => value))}`);
    });
    addEventListener("popstate", () => show(location.pathname + location.search));
  }
})();
