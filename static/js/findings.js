// A triangle beside a number opens its findings in a panel. Without this script, it links to the list of findings.
"use strict";
(() => {
  const panel = document.createElement("div");
  panel.id = "doubt-panel";
  panel.className = "classic";
  panel.popover = "auto";
  panel.tabIndex = -1;
  panel.setAttribute("role", "dialog");
  panel.setAttribute("aria-label", "Findings about this number");
  document.body.append(panel);
  let opener = null; // a poll may replace the triangle; its href identifies the new one

  function place(from) {
    const at = from.getBoundingClientRect(), size = panel.getBoundingClientRect(), gap = 6;
    const left = Math.max(gap, Math.min(at.left - 16, innerWidth - size.width - gap));
    const below = at.bottom + gap;
    const top = below + size.height <= innerHeight ? below : Math.max(gap, at.top - gap - size.height);
    panel.style.left = `${left}px`;
    panel.style.top = `${top}px`;
  }

  async function open(link) {
    opener = link.getAttribute("href");
    try {
      const response = await fetch(link.href, { headers: { "HX-Request": "true" } });
      if (!response.ok || response.redirected) throw new Error();
      panel.innerHTML = await response.text();
    } catch {
      location.assign(link.href);
      return;
    }
    panel.querySelectorAll("input[name=next]").forEach((input) => { input.value = location.pathname + location.search + location.hash; });
    panel.showPopover();
    place(link);
    panel.focus();
  }

  // The position of the panel is wrong after a phone is rotated.
  addEventListener("resize", () => { if (panel.matches(":popover-open")) panel.hidePopover(); });
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-doubt]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    event.preventDefault();
    open(link);
  });
  panel.addEventListener("toggle", (event) => {
    if (event.newState !== "closed" || !opener) return;
    const lost = document.activeElement === document.body || panel.contains(document.activeElement);
    if (lost) document.querySelector(`a[data-doubt][href="${CSS.escape(opener)}"]`)?.focus();
    opener = null;
  });
})();
