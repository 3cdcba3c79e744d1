// A form that its own answer replaces: until then its fields take no input, which the answer would discard, and a
// button such as Save that is pressed meanwhile is pressed in the new form. A second click, and a button with a place
// (remove:2), which may name another panel by then, do nothing.
"use strict";
(() => {
  let sent = null, by = null, pressed = null; // the form that waits for its answer, the button that sent it, the one pressed since

  function hold(form, isHeld) {
    form.querySelectorAll("input, select, textarea").forEach((field) => { field.inert = isHeld; });
    form.toggleAttribute("aria-busy", isHeld);
    sent = isHeld ? form : null;
  }

  document.addEventListener("htmx:beforeSend", (event) => {
    if (!event.detail.target.matches("form")) return;
    by = event.detail.requestConfig.triggeringEvent?.submitter;
    pressed = null;
    hold(event.detail.target, true);
  });
  document.addEventListener("submit", (event) => {
    if (!sent || event.target !== sent) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    const button = event.submitter;
    if (button && button !== by && !button.value.includes(":")) pressed = `button[name="${button.name}"][value="${button.value}"]`;
  }, true);
  document.addEventListener("htmx:afterSettle", () => {
    const form = sent && document.getElementById(sent.id);
    if (!form || form === sent) return;
    sent = null;
    if (pressed) form.querySelector(pressed)?.click();
    pressed = null;
  });
  document.addEventListener("htmx:afterRequest", (event) => {
    if (sent && !event.detail.successful && event.detail.target === sent) hold(sent, false);
  });
})();
