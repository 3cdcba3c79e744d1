// The configuration form: live checks, presets, and fields that the engine does not use are collapsed.
"use strict";
(() => {
  const root = document.querySelector("[data-check]");
  if (!root) return;
  const form = root.closest("form");
  const fields = () => form.querySelectorAll("[name]");
  const touched = new Set();
  let requests = 0, timer;

  // Show errors below their fields. Empty fields that the user has not touched show none.
  function showErrors(errors) {
    for (const place of root.querySelectorAll(".field-error")) {
      const name = place.id.replace("error-", "");
      const messages = errors[name] || [];
      const isEmpty = form.elements[name] && form.elements[name].value === "" && !touched.has(name);
      place.textContent = isEmpty ? "" : messages.join("; ");
      if (form.elements[name]?.setAttribute) form.elements[name].setAttribute("aria-invalid", String(Boolean(place.textContent)));
    }
  }

  // Move fields between the used and the unused part of their section. Fields with errors are never hidden.
  function place(unused) {
    const hidden = new Set(unused);
    for (const section of root.querySelectorAll(".config-section")) {
      const used = section.querySelector("[data-used]"), rest = section.querySelector("[data-unused]");
      if (!rest) continue;
      const before = used.children.length;
      const all = [...used.children, ...rest.children].sort((a, b) => a.dataset.order - b.dataset.order);
      for (const field of all) {
        const to = hidden.has(field.dataset.field) ? rest : used;
        if (field.parentElement !== to && !field.contains(document.activeElement)) to.append(field);
      }
      for (const list of [used, rest]) {
        const sorted = [...list.children].sort((a, b) => a.dataset.order - b.dataset.order);
        if (sorted.some((field, at) => field !== list.children[at]) && !list.contains(document.activeElement)) list.append(...sorted);
      }
      rest.previousElementSibling.querySelector("[data-count]").textContent = rest.children.length;
      rest.parentElement.hidden = !rest.children.length;
      if (rest.querySelector(".field-error:not(:empty)")) rest.parentElement.open = true;
      if (before === 0 && used.children.length) section.open = true;
      if (before && !used.children.length && !section.querySelector(".field-error:not(:empty)")) section.open = false;
      if (section.querySelector(".field-error:not(:empty)")) section.open = true;
    }
  }

  async function check() {
    const number = ++requests;
    root.dataset.checking = "1";
    try {
      const response = await fetch(root.dataset.check, { method: "POST", body: new FormData(form) });
      if (!response.ok) throw new Error(`the server answered ${response.status}`);
      const answer = await response.json();
      if (number !== requests) return; // a newer check is on its way
      showErrors(answer.errors);
      place(answer.unused);
      document.getElementById("points").innerHTML = answer.preview;
      document.getElementById("changes").innerHTML = answer.changes;
      delete root.dataset.checking;
    } catch (error) {
      document.getElementById("error-__all__").textContent = `Not checked: ${error.message}. Press Save to see the problems.`;
    }
  }

  function soon() {
    clearTimeout(timer);
    timer = setTimeout(check, 300);
  }

  function fill(values) {
    for (const [name, value] of Object.entries(values)) {
      const field = form.elements[name];
      if (!field) continue;
      if (field.type === "checkbox") field.checked = Boolean(value);
      else field.value = value === null ? "" : String(value);
    }
    check();
  }

  async function start(preset) {
    const response = await fetch(preset.dataset.presets.replace("KEY", preset.value));
    if (response.ok) fill(await response.json());
  }

  async function readFlags(button) {
    const body = new FormData();
    body.set("flags", document.getElementById("flags").value);
    body.set("csrfmiddlewaretoken", form.elements.csrfmiddlewaretoken.value);
    const response = await fetch(button.dataset.url, { method: "POST", body });
    const answer = response.headers.get("Content-Type")?.includes("json") ? await response.json() : { said: `Not read: the server answered ${response.status}.` };
    document.getElementById("flags-said").textContent = answer.said;
    if (answer.values) fill(answer.values);
  }

  root.querySelectorAll("[data-field]").forEach((field, at) => { field.dataset.order = at; });
  form.addEventListener("input", (event) => {
    if (event.target.id === "preset") return;
    touched.add(event.target.name);
    soon();
  });
  document.getElementById("preset").addEventListener("change", (event) => { if (event.target.value) start(event.target); });
  document.getElementById("read-flags").addEventListener("click", (event) => readFlags(event.target));
  // Ctrl+S or Cmd+S saves, as in an editor.
  document.addEventListener("keydown", (event) => {
    if (event.key !== "s" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    form.querySelector("[name=_save]")?.click();
  });
  // The user may have typed before this script was loaded.
  function isChanged(field) {
    if (field.type === "checkbox") return field.checked !== field.defaultChecked;
    if (!field.options) return field.value !== field.defaultValue;
    const chosen = [...field.options].find((option) => option.defaultSelected);
    return Boolean(chosen) && !chosen.selected;
  }
  for (const field of fields()) if (field.id !== "preset" && field.type !== "hidden" && isChanged(field)) touched.add(field.name);
  // A configuration that was never saved has no points; compute them from the fields.
  if (touched.size || !document.getElementById("points").childElementCount) check();
  let sent = false;
  form.addEventListener("submit", () => { sent = true; });
  addEventListener("beforeunload", (event) => { if (touched.size && !sent) event.preventDefault(); });
})();
