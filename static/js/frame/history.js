// A choice that changes the address is a step of the history, so that Back undoes it. What one types into a field is one step.
"use strict";
(() => {
  let typed = null; // the field whose text has made a step
  document.addEventListener("focusin", ({ target }) => { if (target !== typed) typed = null; });
  document.addEventListener("htmx:beforeHistoryUpdate", ({ detail }) => {
    const event = detail.requestConfig?.triggeringEvent;
    if (detail.history.type !== "replace" || !event || new URL(detail.history.path, location.href).href === location.href) return;
    const isMore = event.type === "input" && typed === event.target;
    typed = event.type === "input" ? event.target : null;
    if (!isMore) detail.history.type = "push";
  });

  // htmx loads the page again when one goes back; its fields are then those of the address, not what the browser kept.
  const navigation = performance.getEntriesByType("navigation")[0];
  if (navigation?.type === "reload") {
    addEventListener("pageshow", () => document.querySelectorAll("form[hx-replace-url]").forEach((form) => form.reset()), { once: true });
  }
})();
