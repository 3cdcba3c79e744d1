// Drag along an axis of the parallel coordinates to select runs: the tables and curves then show these, and the address keeps the range.
"use strict";
(() => {
  const NEAR = 14, LEAST = 4; // px: how far from an axis a drag may start, and how long it is at least
  let drag = null;
  const plot = () => document.querySelector('[data-figure="parallel"].js-plotly-plot');

  // Return the axis at a place of the screen with its number, and the height from 0 to 1.
  function at(element, event) {
    const { xaxis, yaxis, _size: size } = element._fullLayout;
    const box = element.getBoundingClientRect();
    const left = event.clientX - box.left - size.l, top = event.clientY - box.top - size.t;
    const place = Math.round(xaxis.p2d(left)), axis = element.layout.meta.axes[place];
    if (!axis || Math.abs(xaxis.d2p(place) - left) > NEAR || top < -NEAR || top > size.h + NEAR) return null;
    return { axis, place, height: Math.min(1, Math.max(0, yaxis.p2d(top))), top, x: xaxis.d2p(place) + size.l, offset: size.t };
  }

  // The text of a height: a number, or the nearest word; words need no more than to be touched.
  function text([, low, high, words], height, side) {
    if (words.length) {
      const last = words.length - 1, place = height * last;
      return words[Math.min(last, Math.max(0, side < 0 ? Math.ceil(place - 0.15) : Math.floor(place + 0.15)))];
    }
    return String(Number((low + height * (high - low)).toPrecision(6)));
  }

  function show(address) {
    history.pushState(history.state, "", address);
    htmx.ajax("GET", address.toString(), { source: "#compared", target: "#compared", select: "#compared", swap: "outerHTML" });
    document.dispatchEvent(new CustomEvent("parlab:address"));
  }

  function start(event) {
    const element = plot();
    if (event.button || !element || !element.contains(event.target) || event.target.closest(".modebar, .legend")) return;
    const from = at(element, event);
    if (!from) return;
    event.preventDefault();
    event.stopPropagation();
    const band = document.createElement("div");
    band.className = "brush";
    element.append(band);
    drag = { element, from, band, to: from };
    move(event);
  }

  function move(event) {
    if (!drag) {
      const element = plot();
      if (element?.contains(event.target)) element.classList.toggle("on-axis", Boolean(at(element, event)));
      return;
    }
    const { element, from, band } = drag, box = element.getBoundingClientRect();
    const top = event.clientY - box.top - from.offset, height = Math.min(1, Math.max(0, element._fullLayout.yaxis.p2d(top)));
    drag.to = { height, top };
    Object.assign(band.style, { left: `${from.x - 8}px`, top: `${Math.min(from.top, top) + from.offset}px`, height: `${Math.abs(top - from.top)}px` });
    // What would be selected, before the server answers.
    const [low, high] = [Math.min(from.height, height), Math.max(from.height, height)];
    const opacity = element.data.map(({ y }) => (y[from.place] !== null && y[from.place] >= low - 0.01 && y[from.place] <= high + 0.01 ? 1 : 0.12));
    element.querySelectorAll(".scatterlayer .trace").forEach((line, place) => { line.style.opacity = opacity[place]; });
  }

  function end() {
    if (!drag) return;
    const { from, to, band } = drag, name = from.axis[0];
    drag = null;
    band.remove();
    const page = new URL(location.href);
    const others = page.searchParams.getAll("brush").filter((brush) => !brush.startsWith(`${name}:`));
    page.searchParams.delete("brush");
    others.forEach((brush) => page.searchParams.append("brush", brush));
    const [low, high] = [Math.min(from.height, to.height), Math.max(from.height, to.height)];
    if (Math.abs(to.top - from.top) > LEAST) page.searchParams.append("brush", `${name}:${text(from.axis, low, -1)}..${text(from.axis, high, 1)}`); // a click removes the selection
    show(page);
  }

  // Pooled repeats are columns of the tables as well; the figures follow by themselves.
  document.addEventListener("change", ({ target }) => {
    if (target.name === "repeats") htmx.ajax("GET", location.href, { source: "#compared", target: "#compared", select: "#compared", swap: "outerHTML" });
  });
  addEventListener("pointerdown", start, true);
  addEventListener("mousedown", (event) => { if (drag) { event.preventDefault(); event.stopPropagation(); } }, true);
  addEventListener("pointermove", move);
  addEventListener("pointerup", end);
  addEventListener("popstate", () => { if (document.getElementById("compared")) location.reload(); });
})();
