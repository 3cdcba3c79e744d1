// Smoothing of the curves of a comparison: an exponential mean of the drawn points, in the browser, so that it follows the slider.
"use strict";
(() => {
  const slider = document.getElementById("smoothing");
  if (!slider) return;
  const raw = new WeakMap(); // plot -> values of its traces as the server sent them
  const plot = () => document.querySelector('[data-figure="curves"]');

  function smoothed(values, weight) {
    let mean = 0, share = 0;
    return values.map((value) => {
      if (value === null || Number.isNaN(value)) return value;
      mean = weight * mean + (1 - weight) * value;
      share = weight * share + (1 - weight); // without the bias of the first values
      return mean / share;
    });
  }

  function apply() {
    const element = plot(), weight = Number(slider.value) / 100;
    document.getElementById("smoothing-value").textContent = weight ? weight.toFixed(2) : "off";
    if (!raw.has(element)) return;
    Plotly.restyle(element, { y: raw.get(element).map((values) => (weight ? smoothed(values, weight) : values)) });
  }

  document.addEventListener("parlab:drawn", ({ target }) => {
    if (target !== plot() || !target.data) return;
    raw.set(target, target.data.map((trace) => Array.from(trace.y)));
    if (Number(slider.value)) apply();
  });
  slider.addEventListener("input", apply);
  slider.addEventListener("change", () => {
    const page = new URL(location.href);
    if (Number(slider.value)) page.searchParams.set("smooth", slider.value); else page.searchParams.delete("smooth");
    history.replaceState(history.state, "", page);
  });
  slider.value = new URL(location.href).searchParams.get("smooth") || 0;
  apply();
})();
