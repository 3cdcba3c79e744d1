// Completion of filter terms: field names, and the values of fields that have few.
"use strict";
(() => {
  const input = document.getElementById("search");
  const terms = JSON.parse(document.getElementById("terms").textContent);
  const list = document.createElement("ul");
  list.id = "suggestions";
  list.className = "suggestions";
  list.setAttribute("role", "listbox");
  list.setAttribute("aria-label", "Terms of the filter");
  list.hidden = true;
  input.after(list);
  let at = -1;

  // The term at the caret: its start, the text before the part to complete, and that part.
  function term() {
    const begin = input.value.lastIndexOf(" ", input.selectionStart - 1) + 1;
    const text = input.value.slice(begin, input.selectionStart);
    const [, before, part] = /^(-?(?:\w[\w.]*(?::|!=|=)(?:[^,]*,)*)?)(.*)$/s.exec(text) || ["", "", text];
    return { begin, before, part };
  }

  function matches() {
    const { before, part } = term(), typed = part.toLowerCase();
    const field = /^-?([\w.]+)(:|!=|=)/.exec(before)?.[1];
    if (!field) return typed ? terms.filter((entry) => entry.name.startsWith(typed)).map((entry) => [entry.name + entry.sign, entry.help]) : [];
    const values = terms.find((entry) => entry.name === field.toLowerCase())?.values || [];
    return values.filter((value) => value.startsWith(typed) && value !== typed).map((value) => [value, ""]);
  }

  function mark(next) {
    at = next;
    [...list.children].forEach((item, number) => item.setAttribute("aria-selected", String(number === at)));
    if (list.children[at]) input.setAttribute("aria-activedescendant", list.children[at].id);
    else input.removeAttribute("aria-activedescendant");
    list.children[at]?.scrollIntoView({ block: "nearest" });
  }

  function show(rows) {
    list.replaceChildren(...rows.slice(0, 12).map(([text, help], number) => {
      const item = document.createElement("li"), note = document.createElement("span");
      item.id = `suggestion-${number}`;
      item.setAttribute("role", "option");
      item.dataset.text = text;
      note.className = "muted";
      note.textContent = help;
      item.append(text, note);
      return item;
    }));
    list.hidden = !rows.length;
    input.setAttribute("aria-expanded", String(!list.hidden));
    mark(-1);
  }

  function take(text) {
    const { begin, before } = term(), rest = input.value.slice(input.selectionStart);
    const done = before.endsWith(":") || before.endsWith("=") || before.endsWith(",");
    const value = before + text + (done && !rest ? " " : "");
    input.value = input.value.slice(0, begin) + value + rest;
    input.setSelectionRange(begin + value.length, begin + value.length);
    input.focus();
    input.dispatchEvent(new Event("input", { bubbles: true }));
  }

  input.addEventListener("input", () => show(matches()));
  input.addEventListener("keydown", (event) => {
    if (list.hidden) return;
    const count = list.children.length;
    if (event.key === "ArrowDown") mark((at + 1) % count);
    else if (event.key === "ArrowUp") mark((at <= 0 ? count : at) - 1);
    else if (event.key === "Escape") show([]);
    else if (event.key === "Enter" && at >= 0) take(list.children[at].dataset.text);
    else return;
    event.preventDefault();
  });
  input.addEventListener("blur", () => show([]));
  // mousedown fires before blur, which hides the list.
  list.addEventListener("mousedown", (event) => {
    event.preventDefault();
    const item = event.target.closest("li");
    if (item) take(item.dataset.text);
  });
})();
