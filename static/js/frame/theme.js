// Loaded before the first paint, so that the page does not flash in the other theme.
"use strict";
(() => {
  const root = document.documentElement;
  const stored = () => { try { return localStorage.getItem("parlab-theme"); } catch { return null; } };
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isChosen = () => ["light", "dark"].includes(stored());
  const apply = () => { root.dataset.theme = isChosen() ? stored() : system.matches ? "dark" : "light"; };
  apply();
  try { root.classList.toggle("tight", localStorage.getItem("parlab-menu") === "tight"); } catch { /* private window */ }
  const announce = () => document.dispatchEvent(new CustomEvent("parlab:theme"));
  document.addEventListener("click", (event) => {
    if (!event.target.closest("[data-theme-switch]")) return;
    root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("parlab-theme", root.dataset.theme); } catch { /* private window: the theme lasts for this page only */ }
    announce();
  });
  // Paper is light: so are the fills of figures.
  let onScreen = root.dataset.theme;
  addEventListener("beforeprint", () => { onScreen = root.dataset.theme; root.dataset.theme = "light"; });
  addEventListener("afterprint", () => { root.dataset.theme = onScreen; });
  system.addEventListener("change", () => { apply(); announce(); });
})();
