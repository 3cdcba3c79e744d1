// Times that move between two polls: `data-since` counts up from a moment, `data-until` down to one.
"use strict";
(() => {
  const space = "\u202f";
  function duration(seconds) {
    const whole = Math.max(0, Math.round(seconds));
    for (const [size, name, small, smallName] of [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]]) {
      if (whole < size) continue;
      const rest = Math.floor((whole % size) / small);
      return `${Math.floor(whole / size)}${space}${name}${rest ? ` ${rest}${space}${smallName}` : ""}`;
    }
    return `${whole}${space}s`;
  }
  function tick() {
    if (document.hidden) return;
    for (const element of document.querySelectorAll("[data-since], [data-until]")) {
      const { since, until } = element.dataset;
      const text = since ? `${duration((Date.now() - Date.parse(since)) / 1000)} ago` : duration((Date.parse(until) - Date.now()) / 1000);
      if (element.textContent !== text) element.textContent = text;
    }
  }
  setInterval(tick, 1000);
  document.addEventListener("htmx:afterSwap", tick);
})();
