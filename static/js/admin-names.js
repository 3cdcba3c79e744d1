// Django's selector of several things explains itself in tooltips that have a name but no role; a name needs one.
"use strict";
addEventListener("load", () => setTimeout(() => {
  for (const tip of document.querySelectorAll("span.help-tooltip[aria-label]")) tip.setAttribute("role", "img");
}));
