// Arrange the panels of a dashboard: drag a panel by its handle, or use Alt and the arrow keys in it. Nothing is stored until Save.
"use strict";
(() => {
  const form = () => document.getElementById("dashboard-form");
  const panels = () => [...form().querySelectorAll("[data-panel]")];
  let dragged = null;

  // The buttons name the place of their panel, which the server counts in the order of the page.
  function changed(panel, text) {
    panels().forEach((other, place) => other.querySelectorAll("button[name=act]").forEach((button) => { button.value = `${button.value.split(":")[0]}:${place}`; }));
    const status = form().querySelector("[data-status]");
    status.textContent = text || `${panel.querySelector("[name=title]").value || "Panel"} is panel ${panels().indexOf(panel) + 1} of ${panels().length}. Not saved yet`;
  }

  function move(panel, by) {
    const all = panels(), other = all[all.indexOf(panel) + by];
    if (!other) return;
    if (by < 0) other.before(panel); else other.after(panel);
    changed(panel);
  }

  function resize(panel, name, by) {
    const select = panel.querySelector(`[name=${name}]`), to = select.selectedIndex + by;
    if (to < 0 || to >= select.options.length) return;
    select.selectedIndex = to;
    changed(panel, `${name[0].toUpperCase()}${name.slice(1)}: ${select.options[to].text}. Not saved yet`);
  }

  document.addEventListener("keydown", (event) => {
    const panel = event.target.closest?.("[data-panel]");
    if (!panel || !event.altKey || event.ctrlKey || event.metaKey) return;
    const focused = document.activeElement;
    if (event.key === "ArrowUp" || event.key === "ArrowDown") {
      const by = event.key === "ArrowUp" ? -1 : 1;
      if (event.shiftKey) resize(panel, "height", -by); else move(panel, by);
    } else if (event.key === "ArrowLeft" || event.key === "ArrowRight") resize(panel, "width", event.key === "ArrowLeft" ? -1 : 1);
    else return;
    event.preventDefault();
    focused.focus(); // moving an element takes the focus away
  });

  document.addEventListener("pointerdown", (event) => {
    const handle = event.target.closest("[data-handle]");
    if (!handle || event.button) return;
    dragged = handle.closest("[data-panel]");
    handle.setPointerCapture(event.pointerId);
    dragged.classList.add("dragged");
    event.preventDefault();
  });
  document.addEventListener("pointermove", (event) => {
    if (!dragged) return;
    const over = panels().find((panel) => { const { top, bottom } = panel.getBoundingClientRect(); return panel !== dragged && event.clientY >= top && event.clientY <= bottom; });
    if (!over) return;
    const { top, height } = over.getBoundingClientRect(), isAfter = panels().indexOf(over) > panels().indexOf(dragged);
    // Only beyond the middle, so that panels of unlike heights do not change places back and forth.
    if (isAfter && event.clientY > top + height / 2) over.after(dragged);
    else if (!isAfter && event.clientY < top + height / 2) over.before(dragged);
  });
  function drop() {
    if (!dragged) return;
    dragged.classList.remove("dragged");
    changed(dragged);
    dragged = null;
  }
  document.addEventListener("pointerup", drop);
  document.addEventListener("pointercancel", drop);
})();
