// A saved view is the address of the page, which filters and choices have changed since the page was loaded.
"use strict";
document.addEventListener("submit", (event) => {
  if ("keepsAddress" in event.target.dataset) event.target.elements.address.value = location.pathname + location.search;
});
