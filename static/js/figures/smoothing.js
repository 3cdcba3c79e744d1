// Smoothing of the curves of a comparison: an exponential mean of the drawn points, in the browser, so that it follows the slider.
"use strict";
(() => {
  const slider = document.getElementById("smoothing");
  if (!slider) return;
  const SETTLED_MS = 200; // after the last move of the slider Plotly draws the figure anew
  const raw = new WeakMap(); // plot -> values of its traces as the server sent them
  const SMOOTHED = '[data-figure="curves"], [data-smooths]';
  const plots = () => [...document.querySelectorAll(SMOOTHED)].filter((element) => raw.has(element) && element.data); // some may be drawn anew
  let settling = 0;

  function smoothed(values, weight) {
    let mean = 0, share = 0;
    return values.map((value) => {
      if (value === null || Number.isNaN(value)) return value;
      mean = weight * mean + (1 - weight) * value;
      share = weight * share + (1 - weight); // without the bias of the first values
      return mean / share;
    });
  }

  // While the slider moves, only the lines and markers on the screen change, since Plotly takes longer than a few frames for twenty runs.
  function move(element, values) {
    const { _fullLayout: layout, calcdata } = element;
    const axis = (name) => layout[name.replace(/^[xy]/, "$&axis")];
    if (calcdata.some(([first]) => first.trace.fill && first.trace.fill !== "none")) return false; // bands belong to two lines
    for (const group of element.querySelectorAll(".scatterlayer > .trace")) {
      const points = group.__data__, { trace } = points[0], y = values[trace.index];
      const xs = axis(trace.xaxis), ys = axis(trace.yaxis);
      const places = points.map(({ x, i }, at) => {
        const value = y[i ?? at];
        return Number.isFinite(value) && (ys.type !== "log" || value > 0) ? [xs.c2p(x).toFixed(1), ys.c2p(value).toFixed(1)] : null;
      });
      let path = "";
      places.forEach((place, at) => { if (place) path += `${at && places[at - 1] ? "L" : "M"}${place}`; });
      group.querySelectorAll(".js-line").forEach((line, part) => line.setAttribute("d", part ? "" : path)); // one per gap
      for (const marker of group.querySelectorAll(".point")) {
        const place = places[points.indexOf(marker.__data__)];
        if (place) marker.setAttribute("transform", `translate(${place})`);
      }
    }
    return true;
  }

  function apply(isMoving = false) {
    const weight = Number(slider.value) / 100;
    document.getElementById("smoothing-value").textContent = weight ? weight.toFixed(2) : "off";
    clearTimeout(settling);
    for (const element of plots()) {
      const values = raw.get(element).map((line) => (weight ? smoothed(line, weight) : line));
      if (isMoving && move(element, values)) settling = setTimeout(apply, SETTLED_MS);
      else Plotly.restyle(element, { y: values });
    }
  }

  document.addEventListener("parlab:drawn", ({ target }) => {
    if (!target.matches?.(SMOOTHED) || !target.data) return;
    raw.set(target, target.data.map((trace) => Array.from(trace.y)));
    if (Number(slider.value)) apply();
  });
  slider.addEventListener("input", () => apply(true));
  slider.addEventListener("change", () => {
    apply();
    const page = new URL(location.href);
    if (Number(slider.value)) page.searchParams.set("smooth", slider.value); else page.searchParams.delete("smooth");
    if (page.href !== location.href) history.pushState({ choices: true }, "", page);
  });
  const show = () => {
    slider.value = new URL(location.href).searchParams.get("smooth") || 0;
    apply();
  };
  addEventListener("popstate", (event) => { if (!event.state?.htmx) show(); });
  show();
})();
