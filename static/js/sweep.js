// The sweep builder: errors at their fields, fields that the engine does not read, focus and keys.
"use strict";
(() => {
  const builder = () => document.getElementById("builder");
  let open = null; // sections that were open before the form was replaced
  let isChanged = false; // whether leaving the page would lose a change

  // Errors and unused fields follow what is typed, without replacing the inputs themselves.
  function mark() {
    const text = document.getElementById("marks");
    if (!text) return;
    const marks = JSON.parse(text.textContent), unused = new Set(marks.unused);
    for (const row of builder().querySelectorAll(".builder-field")) {
      const messages = marks.errors[row.dataset.field] || [];
      row.toggleAttribute("data-unused", unused.has(row.dataset.field));
      row.toggleAttribute("data-wrong", messages.length > 0);
      row.querySelector(".field-error").textContent = messages.join("; ");
      row.querySelector("select, textarea, input:not([type=hidden])")?.setAttribute("aria-invalid", String(messages.length > 0));
      if (messages.length) row.closest("details").open = true;
    }
    for (const section of builder().querySelectorAll(".builder-section")) {
      section.toggleAttribute("data-unused", !section.querySelector(".builder-field:not([data-unused])"));
    }
    const box = document.getElementById("pasted");
    if (box.value === box.dataset.shown) box.value = marks.json; // an edited text is the user's
    box.dataset.shown = marks.json;
  }

  function show(id) {
    const target = document.getElementById(id);
    if (!target) return;
    target.closest("details")?.setAttribute("open", "");
    target.closest("[data-unused]")?.setAttribute("data-wrong", "");
    target.focus();
    target.select?.();
    target.scrollIntoView({ block: "center" });
  }

  document.addEventListener("click", (event) => {
    const link = event.target.closest("[data-goes]");
    if (!link) return;
    event.preventDefault();
    show(link.dataset.goes);
  });
  // An answer about points that is on its way, or asked for meanwhile, would replace the mistakes of a later answer.
  let isAsking = false;
  document.addEventListener("htmx:beforeRequest", (event) => {
    const part = event.detail.target?.id;
    if (part === "points" && isAsking) event.preventDefault();
    if (part !== "builder") return;
    isAsking = true;
    htmx.trigger("#points", "htmx:abort");
  });
  document.addEventListener("htmx:afterRequest", (event) => { if (event.detail.target?.id === "builder") isAsking = false; });
  document.addEventListener("htmx:beforeSwap", (event) => {
    if (event.detail.target.id === "builder") open = [...document.querySelectorAll("#builder details[id]")].filter((part) => part.open).map((part) => part.id);
  });
  document.addEventListener("htmx:afterSettle", (event) => {
    if (event.detail.target?.id === "points") mark();
    if (!open) return;
    open.forEach((id) => { const part = document.getElementById(id); if (part) part.open = true; });
    open = null;
    isChanged = true;
    if (builder().dataset.focus) show(builder().dataset.focus);
    document.dispatchEvent(new Event("builder:replaced"));
  });

  // Back, Forward and saving leave the page without a question: nothing is lost by them.
  const leave = () => { isChanged = false; };
  document.addEventListener("input", (event) => { if (event.target.closest("#builder") && event.target.id !== "field-search") isChanged = true; });
  document.addEventListener("htmx:beforeOnLoad", (event) => { if (event.detail.xhr.getResponseHeader("HX-Redirect")) leave(); });
  document.addEventListener("submit", (event) => { if (!event.defaultPrevented) leave(); });
  addEventListener("popstate", leave);
  addEventListener("beforeunload", (event) => { if (isChanged) event.preventDefault(); });

  document.addEventListener("keydown", (event) => {
    const press = (selector) => { event.preventDefault(); document.querySelector(selector)?.click(); };
    if ((event.ctrlKey || event.metaKey) && event.key === "s") press("#save");
    else if ((event.ctrlKey || event.metaKey) && event.key === "Enter") press("#save-launch");
    else if (event.altKey && event.code === "KeyV") {
      const row = event.target.closest(".builder-field");
      if (row) { event.preventDefault(); row.querySelector(".vary")?.click(); }
      const axis = event.target.closest(".axis");
      if (axis) { event.preventDefault(); axis.querySelector('[value^="fix:"]').click(); }
    } else if (event.key === "f" && !event.ctrlKey && !event.metaKey && !event.altKey && !event.target.closest("input, textarea, select")) {
      event.preventDefault();
      document.getElementById("field-search").focus();
    }
  });
})();
