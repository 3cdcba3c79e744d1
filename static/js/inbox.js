// Keys of the inbox: J and K move between the lines, and a letter presses the button that names it.
"use strict";
(() => {
  let leader = 0; // `g h` opens Home and puts nothing off
  const links = () => [...document.querySelectorAll("#inbox .ii .it0")];

  function move(by) {
    const all = links(), at = all.findIndex((link) => link.closest(".ii").classList.contains("on"));
    const next = all[Math.max(0, Math.min(all.length - 1, at + by))];
    if (next && next !== all[at]) next.click();
  }

  document.addEventListener("keydown", (event) => {
    if (event.target.closest("input, textarea, select, [contenteditable], dialog[open]")) return;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const isAfterLeader = Date.now() - leader < 1500;
    leader = event.key === "g" ? Date.now() : 0;
    if (isAfterLeader) return;
    if (event.key === "j" || event.key === "k") return move(event.key === "j" ? 1 : -1);
    // Enter on a link or a button is theirs, but for the line that is open already.
    if (event.key === "Enter" && event.target.closest("a, button, summary") && !event.target.closest(".ii.on .it0")) return;
    const button = document.querySelector(`#inbox [data-press="${CSS.escape(event.key)}"]`);
    if (!button) return;
    event.preventDefault();
    button.click();
  });

  // The focus stays with the line that is open, so that the next key goes on from there.
  document.addEventListener("htmx:afterSwap", (event) => {
    if (event.detail.target.id !== "inbox") return;
    const line = document.querySelector("#inbox .ii.on");
    line?.scrollIntoView({ block: "nearest" });
    if (document.activeElement === document.body) line?.querySelector(".it0").focus({ preventScroll: true });
    const unread = document.querySelector("#inbox [data-unread]")?.dataset.unread;
    const count = document.querySelector(".bell i");
    if (count && unread !== undefined) { count.textContent = unread; count.hidden = unread === "0"; }
  });
})();
