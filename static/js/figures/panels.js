// The grid of panels: move, resize, add, remove, full screen. Drawings of the server are requested again in the size that they have.
"use strict";
(() => {
  const grid = document.querySelector("[data-panels]"), workspace = document.getElementById("workspace");
  if (!grid) return;
  const COLUMNS = 12, UNIT = 24, LEAST_WIDTH = 3, LEAST_HEIGHT = 5, MOST_HEIGHT = 20, PULL = 24;
  const panels = () => [...grid.querySelectorAll(":scope > [data-panel]")];

  // ---------- drawings ----------
  // What scrolls can be reached with the keyboard.
  function scrolls(element, isHigh) {
    element.classList.toggle("scrolls", isHigh);
    if (isHigh) element.tabIndex = 0; else element.removeAttribute("tabindex");
  }
  function addressOf(element, width, height) {
    const url = new URL(element.dataset.url, location.href), number = new URL(location.href).searchParams.get("number");
    url.searchParams.set("w", width);
    url.searchParams.set("h", height);
    if (number) url.searchParams.set("number", number); else url.searchParams.delete("number");
    return url;
  }
  async function draw(element, { isNew = false } = {}) {
    const { clientWidth: width, clientHeight: height } = element, svg = element.querySelector("svg");
    if (!width || !height) return;
    const drawn = svg && Number(svg.getAttribute("width"));
    const isRows = svg && Number(svg.getAttribute("height")) > height + 8; // a row for each run, which scroll
    const fits = svg && Math.abs(width / drawn - 1) < 0.06 && (isRows || Math.abs(height / Number(svg.getAttribute("height")) - 1) < 0.08);
    scrolls(element, Boolean(isRows));
    if (fits && !isNew) return;
    const asked = (element.asked = (element.asked || 0) + 1);
    const response = await fetch(addressOf(element, width, height));
    if (!response.ok || asked !== element.asked) return;
    element.innerHTML = await response.text(); // a drawing of the server, whose texts are escaped
    scrolls(element, Number(element.querySelector("svg")?.getAttribute("height")) > height + 8);
    document.dispatchEvent(new CustomEvent("parlab:panel"));
  }
  const waiting = new Map();
  const sizes = new ResizeObserver((entries) => {
    for (const { target } of entries) { clearTimeout(waiting.get(target)); waiting.set(target, setTimeout(() => draw(target), 80)); }
  });
  const seen = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) if (isIntersecting) { seen.unobserve(target); sizes.observe(target); }
  }, { rootMargin: "300px" });
  grid.querySelectorAll("[data-drawing]").forEach((element) => seen.observe(element));
  // What was never scrolled to is drawn before it is printed: the answers cannot be awaited there.
  addEventListener("beforeprint", () => {
    for (const element of grid.querySelectorAll("[data-drawing]")) {
      if (element.querySelector("svg")) continue;
      const request = new XMLHttpRequest(), { clientWidth: w, clientHeight: h } = element;
      request.open("GET", addressOf(element, w || 440, h || 234), false);
      request.send();
      if (request.status === 200) element.innerHTML = request.responseText;
    }
  });
  const again = () => grid.querySelectorAll("[data-drawing]").forEach((element) => { if (element.querySelector("svg")) draw(element, { isNew: true }); });
  workspace.addEventListener("parlab:ended", again);

  // ---------- layout ----------
  const size = (panel) => ({ name: panel.dataset.panel, w: Number(panel.dataset.w), h: Number(panel.dataset.h) });
  async function send(body) {
    const token = document.querySelector("[name=csrfmiddlewaretoken]").value;
    const response = await fetch(grid.dataset.layoutUrl, { method: "POST", headers: { "Content-Type": "application/json", "X-CSRFToken": token }, body: JSON.stringify(body) });
    if (response.status === 409) location.reload(); // another person changed it: the page says so
    else if (!response.ok) document.getElementById("announce").textContent = "The layout was not saved.";
    // What was arranged is one's own from now on, and no longer that of a saved view.
    const page = new URL(location.href);
    if (response.ok && page.searchParams.has("view")) { page.searchParams.delete("view"); history.replaceState(history.state, "", page); }
    grid.dataset.layoutUrl = response.headers.get("X-Layout-Url") || grid.dataset.layoutUrl;
    return response.ok;
  }
  const save = () => send({ panels: panels().map(size) });
  function resize(panel, w, h) {
    const next = { w: Math.max(LEAST_WIDTH, Math.min(COLUMNS, w)), h: Math.max(LEAST_HEIGHT, Math.min(MOST_HEIGHT, h)) };
    panel.classList.replace(`w${panel.dataset.w}`, `w${next.w}`);
    panel.classList.replace(`h${panel.dataset.h}`, `h${next.h}`);
    Object.assign(panel.dataset, next);
  }

  const isFixed = !grid.dataset.layoutUrl;
  let moved = null;
  grid.addEventListener("pointerdown", (event) => {
    if (isFixed || event.button || matchMedia("(max-width: 760px)").matches) return;
    const panel = event.target.closest("[data-panel]"), grip = event.target.closest("[data-grip]");
    if (!panel || (!grip && (!event.target.closest("header") || event.target.closest("a, button, details")))) return;
    event.preventDefault();
    panel.focus({ preventScroll: true });
    moved = { panel, isResize: Boolean(grip), x: event.clientX, y: event.clientY, w: Number(panel.dataset.w), h: Number(panel.dataset.h), isChanged: false };
    panel.classList.add("moving");
    grid.setPointerCapture(event.pointerId);
  });
  grid.addEventListener("pointermove", (event) => {
    if (!moved) return;
    const { panel } = moved, dx = event.clientX - moved.x, dy = event.clientY - moved.y;
    if (!moved.isChanged && Math.abs(dx) + Math.abs(dy) < 5) return;
    moved.isChanged = true;
    if (moved.isResize) {
      const column = (grid.clientWidth + 12) / COLUMNS;
      resize(panel, moved.w + Math.round(dx / column), moved.h + Math.round(dy / UNIT));
      return;
    }
    place(panel, event);
  });
  // Put a panel where the pointer is: the panel below it gives way.
  function place(panel, { clientX, clientY }) {
    const under = document.elementsFromPoint(clientX, clientY).map((element) => element.closest("[data-panel]")).find((other) => other && other !== panel);
    if (!under || under.parentElement !== grid) return;
    const all = panels(), isAfter = panel.isConnected && all.indexOf(under) > all.indexOf(panel);
    if (isAfter) under.after(panel); else under.before(panel);
  }
  function drop() {
    if (!moved) return;
    moved.panel.classList.remove("moving");
    if (moved.isChanged) save();
    moved = null;
  }
  grid.addEventListener("pointerup", drop);
  grid.addEventListener("pointercancel", drop);

  grid.addEventListener("keydown", (event) => {
    const panel = event.target.closest("[data-panel]");
    if (!isFixed && event.target === panel && event.key === "Delete") { remove(panel); return; }
    if (isFixed || !panel || event.target !== panel || !event.key.startsWith("Arrow") || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const isBack = event.key === "ArrowLeft" || event.key === "ArrowUp";
    if (event.shiftKey) {
      const isWide = event.key === "ArrowLeft" || event.key === "ArrowRight", by = isBack ? -1 : 1;
      resize(panel, Number(panel.dataset.w) + (isWide ? by : 0), Number(panel.dataset.h) + (isWide ? 0 : by));
    } else {
      const other = isBack ? panel.previousElementSibling : panel.nextElementSibling;
      if (!other?.matches("[data-panel]")) return;
      if (isBack) other.before(panel); else other.after(panel);
      panel.focus();
    }
    save();
  });

  // ---------- full screen, remove, add ----------
  function full(panel) {
    if (document.fullscreenElement) document.exitFullscreen();
    else panel?.requestFullscreen?.();
  }
  async function remove(panel) { panel.remove(); if (await save()) location.reload(); }
  grid.addEventListener("click", (event) => {
    const panel = event.target.closest("[data-panel]");
    if (event.target.closest("[data-full]")) full(panel);
    if (event.target.closest("[data-remove]")) remove(panel);
  });
  let over = null;
  grid.addEventListener("pointerover", (event) => { over = event.target.closest("[data-panel]"); });
  grid.addEventListener("pointerleave", () => { over = null; });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "f" || event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, dialog[open]")) return;
    const panel = document.activeElement?.closest("[data-panel]") || over;
    if (panel) { event.preventDefault(); full(panel); }
  });

  const menu = document.querySelector("[data-add-panel]");
  if (!menu) return;
  menu.addEventListener("toggle", () => { if (menu.open) menu.querySelector("input").focus(); });
  menu.querySelector("input").addEventListener("input", (event) => {
    const text = event.target.value.toLowerCase();
    for (const offer of menu.querySelectorAll(".offers button")) offer.hidden = !offer.textContent.toLowerCase().includes(text);
    for (const head of menu.querySelectorAll(".offers > p")) {
      let next = head.nextElementSibling, any = false;
      while (next?.matches("button")) { any ||= !next.hidden; next = next.nextElementSibling; }
      head.hidden = !any;
    }
  });
  menu.querySelector("input").addEventListener("keydown", (event) => {
    if (event.key === "Enter") { event.preventDefault(); menu.querySelector(".offers button:not([hidden])")?.click(); }
  });
  // An offer names its panel, or in a drawer with a preview the kind and what it is about.
  function offered(offer) {
    const { preview, w, h } = offer.dataset, of = menu.querySelector("[name=of]")?.value;
    return { name: offer.dataset.offer || `${menu.dataset.drawer}${preview}${of ? `@${of}` : ""}`, w: Number(w), h: Number(h) };
  }
  // An offer that is pulled out of the menu becomes an empty panel, which shows where it will be.
  let pulled = null;
  menu.addEventListener("pointerdown", (event) => {
    const offer = event.target.closest(".offers button");
    if (offer && !event.button && event.pointerType !== "touch") pulled = { offer, x: event.clientX, y: event.clientY, target: null };
  });
  function targetOf(offer) {
    const target = document.createElement("section"), { name, w, h } = offered(offer);
    target.className = `panel target moving w${w} h${h}`;
    Object.assign(target.dataset, { panel: name, w, h });
    target.textContent = offer.textContent;
    return target;
  }
  document.addEventListener("pointermove", (event) => {
    if (!pulled || pulled.isDone) return;
    if (!pulled.target && Math.hypot(event.clientX - pulled.x, event.clientY - pulled.y) < PULL) return;
    pulled.target ??= targetOf(pulled.offer);
    menu.classList.add("pulling");
    if (event.clientY < grid.getBoundingClientRect().top) { pulled.target.remove(); return; }
    if (!pulled.target.isConnected) grid.append(pulled.target);
    place(pulled.target, event);
  });
  async function release({ isKept }) {
    if (!pulled || pulled.isDone) return;
    const { target } = pulled;
    pulled.isDone = true;
    setTimeout(() => { pulled = null; }); // after the click that ends a drag
    menu.classList.remove("pulling");
    if (!target) return;
    if (isKept && target.isConnected && await save()) location.reload();
    else target.remove();
  }
  document.addEventListener("pointerup", () => release({ isKept: true }));
  document.addEventListener("pointercancel", () => release({ isKept: false }));
  document.addEventListener("keydown", (event) => { if (event.key === "Escape" && pulled?.target) { event.stopImmediatePropagation(); release({ isKept: false }); } }, { capture: true });
  menu.addEventListener("click", async (event) => {
    const offer = event.target.closest("[data-offer]"), layout = event.target.closest("[data-layout]");
    if (offer && !pulled?.target && await send({ panels: [...panels().map(size), offered(offer)] })) location.reload();
    if (layout?.dataset.layout === "reset" && await send({})) location.reload();
    if (layout?.dataset.layout === "all" && await send({ panels: panels().map(size), all: true })) { menu.open = false; document.getElementById("announce").textContent = "Saved for all."; }
  });
})();
