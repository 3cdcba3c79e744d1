// Undo and redo in the sweep builder: each state is the content of the form, and the server shows it again.
"use strict";
(() => {
  const SKIPPED = new Set(["csrfmiddlewaretoken", "act", "preset", "pasted"]);
  const form = () => document.getElementById("builder");
  const past = [], future = [];
  const waiting = []; // steps that were asked for before the last one was shown
  let present = "", isRestoring = false, timer, sent = false;

  function state() {
    const pairs = [...new FormData(form())].filter(([name]) => !SKIPPED.has(name));
    return JSON.stringify(pairs);
  }
  function buttons() {
    document.querySelector("[data-undo]").disabled = !past.length;
    document.querySelector("[data-redo]").disabled = !future.length;
  }
  function record() {
    clearTimeout(timer);
    const now = state();
    if (now === present) return;
    past.push(present);
    future.length = 0;
    present = now;
    buttons();
  }
  function restore(from, to) {
    if (isRestoring) { waiting.push([from, to]); return; }
    record();
    if (!from.length) return;
    to.push(present);
    present = from.pop();
    isRestoring = true;
    const values = {};
    for (const [name, value] of JSON.parse(present)) (values[name] ||= []).push(value);
    values.act = ["refresh"];
    values.csrfmiddlewaretoken = [form().elements.csrfmiddlewaretoken.value];
    // Without `source`, the values of the present form would be sent as well.
    htmx.ajax("POST", form().getAttribute("action"), { values, target: "#builder", swap: "outerHTML", source: document.body });
  }

  document.addEventListener("input", (event) => {
    if (!event.target.closest("#builder") || SKIPPED.has(event.target.name)) return;
    clearTimeout(timer);
    timer = setTimeout(record, 400);
  });
  document.addEventListener("builder:replaced", () => {
    if (isRestoring) { isRestoring = false; present = state(); } else record();
    buttons();
    const next = waiting.shift();
    if (next) restore(...next);
  });
  document.addEventListener("htmx:afterRequest", (event) => {
    if (!event.detail.successful) { isRestoring = false; waiting.length = 0; }
  });
  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-undo]")) restore(past, future);
    if (event.target.closest("[data-redo]")) restore(future, past);
  });
  document.addEventListener("keydown", (event) => {
    if (!(event.ctrlKey || event.metaKey) || event.key.toLowerCase() !== "z" || event.target.id === "pasted") return;
    event.preventDefault();
    if (event.shiftKey) restore(future, past); else restore(past, future);
  });
  document.addEventListener("htmx:beforeRequest", () => { if (!isRestoring) record(); });
  document.addEventListener("htmx:beforeOnLoad", (event) => { if (event.detail.xhr.getResponseHeader("HX-Redirect")) sent = true; });
  document.addEventListener("submit", (event) => { if (!event.defaultPrevented) sent = true; });
  addEventListener("beforeunload", (event) => { if (past.length && !sent) event.preventDefault(); });
  present = state();
})();
