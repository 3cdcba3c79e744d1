// A dashboard: the drawer previews a panel before it is added, and the numbers are read again at the chosen interval.
"use strict";
(() => {
  const grid = document.querySelector("[data-panels]"), drawer = document.querySelector("[data-drawer]");

  // ---------- the drawer ----------
  async function preview(offer) {
    const place = drawer.querySelector("[data-preview-place]"), of = drawer.querySelector("[name=of]").value;
    drawer.querySelectorAll("[data-preview]").forEach((other) => other.setAttribute("aria-pressed", String(other === offer)));
    const add = drawer.querySelector("[data-offer]");
    Object.assign(add.dataset, { offer: `${drawer.dataset.drawer}${offer.dataset.preview}${of ? `@${of}` : ""}`, w: offer.dataset.w, h: offer.dataset.h });
    add.disabled = false;
    const url = new URL(drawer.dataset.previewUrl, location.href);
    url.search = new URLSearchParams([...new URLSearchParams(location.search), ["kind", offer.dataset.preview], ["of", of]]);
    const asked = (place.asked = (place.asked || 0) + 1), response = await fetch(url);
    if (asked !== place.asked) return; // a later choice is on its way
    place.innerHTML = response.ok ? await response.text() : "<p class=\"muted\">The preview could not be read. Add the panel to see it.</p>";
    document.dispatchEvent(new CustomEvent("parlab:figures"));
  }
  const pressed = () => drawer.querySelector("[data-preview][aria-pressed=true]");
  drawer?.addEventListener("click", (event) => {
    const offer = event.target.closest("[data-preview]");
    if (offer) preview(offer);
    if (event.target.closest("[data-close]")) drawer.open = false;
  });
  drawer?.addEventListener("change", (event) => { if (event.target.name === "of" && pressed()) preview(pressed()); });

  // ---------- parts of pages: one that fails keeps its last picture, with its time ----------
  const clock = () => new Date().toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  const noted = (part) => part.parentElement.querySelector(".not-read");
  grid?.addEventListener("htmx:afterSwap", ({ target }) => {
    if (!target.matches(".part-body")) return;
    target.dataset.readAt = clock();
    noted(target)?.remove();
  });
  for (const name of ["htmx:responseError", "htmx:sendError"]) grid?.addEventListener(name, ({ target }) => {
    if (!target.matches(".part-body") || noted(target)) return;
    const note = Object.assign(document.createElement("p"), { className: "muted sm not-read", textContent: target.dataset.readAt ? `Not read again since ${target.dataset.readAt}` : "Could not be read" });
    target.after(note);
    if (!target.dataset.readAt) target.replaceChildren();
  });

  // ---------- the interval ----------
  const every = Number(grid?.dataset.refresh);
  async function again() {
    if (document.hidden || drawer?.open || document.querySelector(".moving")) return;
    const response = await fetch(location.href);
    if (!response.ok || response.redirected) return;
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    for (const body of grid.querySelectorAll("[data-panel] .panel-body:not(.part-body)")) {
      const name = CSS.escape(body.closest("[data-panel]").dataset.panel), now = page.querySelector(`[data-panel="${name}"] .panel-body`);
      if (now && now.innerHTML !== body.innerHTML) body.replaceChildren(...now.childNodes); // what the reader holds stays
    }
    document.dispatchEvent(new CustomEvent("parlab:again"));
    document.querySelector("[data-read-at]").textContent = `read ${new Date().toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" })}`;
  }
  if (every) setInterval(again, 1000 * every);
})();
