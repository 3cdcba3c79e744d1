// A log that is pasted on Home is read on the import page.
"use strict";
document.addEventListener("submit", (event) => {
  const box = event.target.querySelector("[data-paste-to]");
  if (!box) return;
  event.preventDefault();
  try { sessionStorage.setItem("parlab-pasted", box.value); } catch { /* too long or a private window: the page opens empty */ }
  location.href = box.dataset.pasteTo;
});
