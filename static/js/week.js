// Watch: J and K move between the changes of the list, "a" answers the one that is open.
"use strict";
document.addEventListener("keydown", (event) => {
  if (event.target.closest("input, textarea, select, [contenteditable], dialog[open]")) return;
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const changes = [...document.querySelectorAll("[data-change]")];
  const by = { j: 1, k: -1 }[event.key];
  if (by) {
    const at = changes.findIndex((link) => link.classList.contains("on"));
    changes[Math.max(0, Math.min(changes.length - 1, at + by))]?.click();
  } else if (event.key === "a") {
    const reason = document.querySelector("[data-answer]");
    if (!reason) return;
    event.preventDefault();
    reason.focus();
  }
});

// A figure that is wider than the screen begins at its change.
for (const line of document.querySelectorAll(".wc svg.fig path.ch-line")) {
  const frame = line.closest(".scroll");
  frame.scrollLeft = line.getBoundingClientRect().left - frame.getBoundingClientRect().left - frame.clientWidth / 2;
}
