// Help tooltips of Django's multiple-select widget have an aria-label but no role, which an aria-label requires.
"use strict";
addEventListener("load", () => setTimeout(() => {
  for (const tip of document.querySelectorAll("span.help-tooltip[aria-label]")) tip.setAttribute("role", "img");
}));
