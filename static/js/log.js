// The log keeps its scroll position while lines arrive, or follows new lines if the box is checked. The chosen node or
// rank is part of the address, so that a link shows the same lines.
"use strict";
(() => {
  const follow = document.getElementById("follow");
  if (!follow) return; // a run without output
  const log = () => document.getElementById("log");
  let top = 0;
  const toEnd = () => { const element = log(); if (element) element.scrollTop = element.scrollHeight; };
  if (follow.checked) toEnd();
  follow.addEventListener("change", () => { if (follow.checked) toEnd(); });
  document.addEventListener("scroll", (event) => {
    if (event.target.id !== "log") return;
    const { scrollTop, scrollHeight, clientHeight } = event.target;
    follow.checked = scrollHeight - scrollTop - clientHeight < 8;
  }, true);
  document.addEventListener("htmx:beforeSwap", (event) => { if (event.detail.target.id === "log") top = log().scrollTop; });
  document.addEventListener("htmx:afterSwap", (event) => {
    if (event.detail.target.id !== "log") return;
    if (follow.checked) toEnd(); else log().scrollTop = top;
  });

  const choice = document.getElementById("log-choice");
  choice?.addEventListener("change", ({ target }) => {
    // A rank belongs to one node: the other field would contradict the new choice.
    if (target.name === "node" && choice.elements.rank) choice.elements.rank.value = "";
    if (target.name === "rank" && choice.elements.node) choice.elements.node.value = "";
    const page = new URL(location.href);
    for (const name of ["node", "rank"]) {
      const value = choice.elements[name]?.value;
      if (value) page.searchParams.set(name, value);
      else page.searchParams.delete(name);
    }
    history.replaceState(history.state, "", page);
    document.getElementById("found").replaceChildren();
  }, true);
  document.addEventListener("htmx:afterSwap", () => { if (follow.checked) toEnd(); });
})();

// The curve above the log and its lines point at each other: a step of the curve leads to its lines, a line to its step.
(() => {
  // The excerpt around a line shows it, however many lines stand before it.
  const centre = () => {
    const meant = document.querySelector("#found .meant"), box = meant?.closest(".excerpt");
    if (box) box.scrollTop = meant.offsetTop - box.offsetTop - box.clientHeight / 2;
  };
  centre();
  document.addEventListener("htmx:afterSwap", ({ detail }) => { if (detail.target.id === "found") centre(); });
  let curve = null, data = null, at = 0; // the place of the cursor in data.places

  const nearest = (amount, part) => data.places.reduce((best, place, index) => (Math.abs(place[part] - amount) < Math.abs(data.places[best][part] - amount) ? index : best), 0);
  function point(index) {
    at = Math.max(0, Math.min(data.places.length - 1, index));
    const [step, x, value] = data.places[at], line = curve.querySelector("[data-cursor-line]");
    line.setAttribute("transform", `translate(${x} 0)`);
    line.removeAttribute("visibility");
    curve.setAttribute("aria-valuenow", step);
    curve.querySelector("output").textContent = `step ${step.toLocaleString("en")}: ${value.toLocaleString("en", { maximumSignificantDigits: 4 })}`;
    for (const row of document.querySelectorAll("#log span[data-step]")) row.classList.toggle("meant", Number(row.dataset.step) === step);
  }
  const pointAt = (step) => point(nearest(step, 0));
  const atPointer = (event) => {
    const box = curve.querySelector("svg").getBoundingClientRect();
    return nearest(((event.clientX - box.left) / box.width) * data.width, 1);
  };
  function show() {
    const step = data.places[at][0], page = new URL(location.href);
    page.searchParams.set("step", step);
    history.replaceState(history.state, "", page);
    document.querySelector("#log span.meant")?.scrollIntoView({ block: "nearest" });
    htmx.ajax("GET", `${curve.dataset.find}&step=${step}`, "#found");
  }

  // The shown lines are the last ones of the log: those that state a step get it.
  function number() {
    const log = document.getElementById("log");
    if (!data.isWhole || !Object.keys(data.ends).length || log.querySelector("span")) return;
    const rows = log.textContent.replace(/\n$/, "").split("\n"), first = data.lines - rows.length + 1;
    log.replaceChildren(...rows.map((text, index) => {
      const row = document.createElement("span"), step = data.ends[first + index];
      if (step !== undefined) row.dataset.step = step;
      row.textContent = `${text}\n`;
      return row;
    }));
  }
  document.addEventListener("htmx:afterSwap", ({ detail }) => {
    const fresh = detail.target.querySelector?.("[data-log-curve]");
    if (fresh) {
      detail.target.removeAttribute("hx-trigger"); // it is loaded, once
      curve = fresh;
      data = JSON.parse(document.getElementById("log-curve").textContent);
      const step = document.querySelector("#found [data-at-step]")?.dataset.atStep || new URLSearchParams(location.search).get("step");
      curve.addEventListener("pointermove", (event) => point(atPointer(event)));
      curve.addEventListener("click", (event) => { point(atPointer(event)); show(); });
      curve.addEventListener("keydown", (event) => {
        const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
        if (way) { event.preventDefault(); point(at + way); } else if (event.key === "Enter") show();
      });
      number();
      if (step) pointAt(Number(step)); else at = data.places.length - 1;
    } else if (curve && detail.target.id === "found") {
      const step = detail.target.querySelector("[data-at-step]");
      if (step) pointAt(Number(step.dataset.atStep));
    } else if (curve) number();
  });
  for (const kind of ["pointerover", "click"]) document.addEventListener(kind, (event) => {
    const row = curve && event.target.closest?.("#log span[data-step]");
    if (row) pointAt(Number(row.dataset.step));
  });
})();
