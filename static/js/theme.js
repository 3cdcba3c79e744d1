// Loaded before the first paint, so that the page does not flash in the other theme.
"use strict";
(() => {
  const root = document.documentElement;
  const stored = () => { try { return localStorage.getItem("parlab-theme"); } catch { return null; } };
  const chosen = stored();
  if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;
  const announce = () => document.dispatchEvent(new CustomEvent("parlab:theme"));
  document.addEventListener("click", (event) => {
    if (!event.target.closest("#theme")) return;
    const dark = getComputedStyle(root).colorScheme === "dark";
    root.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("parlab-theme", root.dataset.theme); } catch { /* private window: the theme lasts for this page only */ }
    announce();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", announce);
})();
