// The page of an experiment: the list of its runs and its panels act on each other. The address holds what a person chose.
"use strict";
(() => {
  const workspace = document.getElementById("workspace");
  if (!workspace) return;
  const MOST_BANDS = 8;
  const TITLES = { step: "step", time: "s", tokens: "tokens", samples: "samples" };
  const USUAL = { over: "step", smooth: "7", group: "" }, CHOICES = Object.keys(USUAL);
  const page = () => new URL(location.href);
  const numbers = (text) => new Set((text || "").split(",").filter(Boolean).map(Number));

  let data = { runs: [], groups: [], maxLines: 60 };
  let byNumber = new Map(), marks = new Map();
  let hidden = new Set(), pinned = new Set(), picked = new Set(), hot = null, current = null;
  let choice = { ...USUAL }, range = null;
  const panels = new Map(); // element of curves -> Curves

  const list = () => document.querySelector("#runs .rls");
  const nameOf = (n) => byNumber.get(n)?.name || `#${n}`;
  const shownRows = () => [...(list()?.querySelectorAll(".rl:not([hidden])") || [])];

  // ---------- the address ----------
  function read() {
    const query = page().searchParams;
    hidden = numbers(query.get("hide"));
    pinned = numbers(query.get("pin"));
    picked = numbers(query.get("compare"));
    for (const name of CHOICES) choice[name] = query.get(name) ?? USUAL[name];
    range = query.has("x0") && query.has("x1") ? [Number(query.get("x0")), Number(query.get("x1"))] : null;
    if (range && !range.every(Number.isFinite)) range = null;
    for (const name of CHOICES) { const field = document.querySelector(`[data-choice="${name}"]`); if (field) field.value = choice[name]; }
    const smooth = document.querySelector("[data-smooth]");
    if (smooth) smooth.textContent = choice.smooth;
    const filtered = document.querySelector("#runs [data-filter]");
    if (filtered && document.activeElement !== filtered) filtered.value = query.get("filter") ?? "";
  }
  function write(changes, { isNew = true } = {}) {
    const url = page();
    for (const [name, value] of Object.entries(changes)) if (value === null || value === "" || value === undefined) url.searchParams.delete(name); else url.searchParams.set(name, value);
    const address = url.href.replaceAll("%2C", ",");
    if (address === location.href) return;
    history[isNew ? "pushState" : "replaceState"](null, "", address);
    keepInTabs();
  }
  const joined = (set) => [...set].sort((a, b) => a - b).join(",");
  // What is hidden, pinned and chosen for comparison stays when another tab opens.
  function keepInTabs() {
    const query = page().searchParams;
    for (const link of document.querySelectorAll(".hd .tabs a")) {
      const url = new URL(link.href);
      for (const name of ["hide", "pin", "compare", "group", "number", "filter"]) if (query.get(name)) url.searchParams.set(name, query.get(name)); else url.searchParams.delete(name);
      link.href = url.href.replaceAll("%2C", ",");
    }
    showPicked();
  }

  // ---------- the list ----------
  function take() {
    const script = document.getElementById("runs-data");
    if (!script) return;
    data = JSON.parse(script.textContent);
    byNumber = new Map(data.runs.map((run) => [run.n, run]));
    collect();
  }
  function collect() {
    marks = new Map();
    for (const element of workspace.querySelectorAll("[data-run]")) {
      const n = Number(element.dataset.run);
      if (!marks.has(n)) marks.set(n, []);
      marks.get(n).push(element);
    }
  }
  const toggleAll = (n, name, isOn) => { for (const element of marks.get(n) || []) element.classList.toggle(name, isOn); };
  function showMarks() {
    for (const [n, elements] of marks) for (const element of elements) {
      element.classList.toggle("off", hidden.has(n));
      element.classList.toggle("pin", pinned.has(n));
      if (element.classList.contains("rl")) {
        element.classList.toggle("picked", picked.has(n));
        element.querySelector(".eye").setAttribute("aria-pressed", String(!hidden.has(n)));
      }
    }
    const shown = data.runs.length - [...hidden].filter((n) => byNumber.has(n)).length;
    const count = document.querySelector("[data-run-count]");
    if (count) count.textContent = shown < data.runs.length ? `${shown} of ${data.runs.length} runs` : `${data.runs.length} run${data.runs.length === 1 ? "" : "s"}`;
  }
  function heat(n) {
    if (n === hot) return;
    if (hot !== null) toggleAll(hot, "hot", false);
    hot = n;
    workspace.classList.toggle("has-hot", n !== null);
    if (n !== null) toggleAll(n, "hot", true);
    for (const panel of panels.values()) panel.showAlone(n);
  }

  // `mb>1 state:oom text`: every term must hold.
  const TERM = /^(-?)([\w.]+)(>=|<=|!=|[:=<>])(.+)$/;
  function holds(run, term) {
    const parts = TERM.exec(term);
    if (!parts) return `${run.name} #${run.n} ${run.state} ${Object.values(run.groups).join(" ")}`.toLowerCase().includes(term);
    const [, minus, field, operator, wanted] = parts, key = Object.keys(run.find).find((name) => name.toLowerCase() === field);
    const value = key === undefined ? null : run.find[key];
    let isMatch = false;
    if (operator === ":" || operator === "=" || operator === "!=") isMatch = wanted.split(",").some((part) => String(value).toLowerCase() === part || (operator === ":" && Number.isNaN(Number(part)) && String(value).toLowerCase().includes(part)));
    else if (value !== null) isMatch = { ">": value > Number(wanted), ">=": value >= Number(wanted), "<": value < Number(wanted), "<=": value <= Number(wanted) }[operator];
    return isMatch !== (Boolean(minus) !== (operator === "!="));
  }
  const fields = () => [...new Set(data.runs.flatMap((run) => Object.keys(run.find)))];
  function unknownField(terms) {
    const known = new Set(fields().map((name) => name.toLowerCase()));
    return terms.map((term) => TERM.exec(term)?.[2]).find((name) => name && !known.has(name));
  }
  function filter() {
    const field = document.querySelector("#runs [data-filter]");
    if (!field) return;
    const terms = field.value.toLowerCase().split(/\s+/).filter(Boolean), unknown = unknownField(terms);
    const isShown = (run) => !unknown && terms.every((term) => holds(run, term));
    for (const element of list().querySelectorAll(".rl")) {
      const run = byNumber.get(Number(element.dataset.run));
      element.hidden = Boolean(run) && !isShown(run);
    }
    const says = document.querySelector("#runs [data-no-match]");
    if (says) {
      says.textContent = unknown ? `No field ${unknown}. Fields: ${fields().join(", ")}` : "No run matches.";
      says.hidden = !terms.length || data.runs.some(isShown);
    }
    for (const line of workspace.querySelectorAll(".runs-table tbody tr[data-run]")) {
      const run = byNumber.get(Number(line.dataset.run));
      line.hidden = Boolean(run) && !isShown(run);
    }
    for (const head of workspace.querySelectorAll(".gh")) {
      let next = head.nextElementSibling, any = false;
      while (next && !next.matches(".gh")) { any ||= !next.hidden; next = next.nextElementSibling; }
      head.hidden = !any;
    }
  }
  function group() {
    arrange(list(), "li", (head, text, count) => { const name = document.createElement("b"); name.textContent = text; head.append(name, ` ${count}`); });
    const body = workspace.querySelector(".runs-table tbody");
    arrange(body, "tr", (head, text, count) => {
      const cell = document.createElement("th"), name = document.createElement("b");
      cell.colSpan = body.parentElement.tHead.rows[0].cells.length;
      name.textContent = text;
      cell.append(name, ` ${count}`);
      head.append(cell);
    });
  }
  // Put the rows of a list below headings, or in the order of the list.
  function arrange(rows, kind, fill) {
    if (!rows) return;
    rows.querySelectorAll(":scope > .gh").forEach((head) => head.remove());
    const elements = new Map([...rows.children].map((element) => [Number(element.dataset.run), element]));
    const present = data.runs.filter((run) => elements.has(run.n));
    if (!choice.group) { rows.append(...present.map((run) => elements.get(run.n))); return; }
    const groups = new Map();
    for (const run of present) { const text = run.groups[choice.group] ?? "–"; groups.set(text, [...(groups.get(text) || []), run]); }
    for (const [text, runs] of groups) {
      const head = document.createElement(kind);
      head.className = "gh";
      fill(head, text, runs.length);
      rows.append(head, ...runs.map((run) => elements.get(run.n)));
    }
  }
  function showPicked() {
    const link = document.querySelector("[data-compare]");
    if (!link) return;
    const url = new URL(link.href);
    if (picked.size) url.searchParams.set("compare", joined(picked)); else url.searchParams.delete("compare");
    link.href = url.href.replaceAll("%2C", ",");
    link.querySelector("[data-compare-text]").textContent = picked.size ? `Compare ${picked.size}` : "Compare";
    link.classList.toggle("pri", picked.size > 1);
  }

  function hide(n, { isAlone = false } = {}) {
    if (isAlone) {
      const others = data.runs.map((run) => run.n).filter((other) => other !== n);
      const isAloneNow = others.every((other) => hidden.has(other)) && !hidden.has(n);
      hidden = new Set(isAloneNow ? [] : others);
    } else if (!hidden.delete(n)) hidden.add(n);
    write({ hide: joined(hidden) }, { isNew: false });
    showMarks();
    redraw();
  }
  function pin(n) {
    if (!pinned.delete(n)) pinned.add(n);
    write({ pin: joined(pinned) }, { isNew: false });
    showMarks();
    if (bands()) redraw();
  }
  function pick(n) {
    if (!picked.delete(n)) picked.add(n);
    write({ compare: joined(picked) }, { isNew: false });
    showMarks();
    showPicked();
    workspace.dispatchEvent(new CustomEvent("parlab:picked"));
  }

  // ---------- the panels ----------
  const order = () => shownRunsInOrder;
  let shownRunsInOrder = [];
  function bands() {
    if (data.runs.length <= data.maxLines) return null;
    const textOf = (run) => (choice.group ? run.groups[choice.group] : run.colour) ?? "";
    // More bands than colours cannot be told apart: those of one colour become one.
    const isMany = new Set(data.runs.map(textOf)).size > MOST_BANDS;
    const groups = new Map();
    for (const run of data.runs) {
      const key = isMany ? run.look[0] : textOf(run);
      if (!groups.has(key)) groups.set(key, { colour: choice.group && !isMany ? 1 + groups.size : run.look[0], runs: [] });
      groups.get(key).runs.push(run.n);
    }
    return [...groups.values()];
  }
  function view() {
    shownRunsInOrder = data.runs.map((run) => run.n);
    return { runs: shownRunsInOrder, hidden, range, smooth: Number(choice.smooth) || 1, looks: new Map(data.runs.map((run) => [run.n, run.look])), bands: bands(),
      apart: pinned, live: new Set(data.runs.filter((run) => run.state === "running").map((run) => run.n)), over: choice.over, xTitle: TITLES[choice.over] || choice.over };
  }
  let isWaiting = false;
  function redraw() {
    if (isWaiting) return;
    isWaiting = true;
    requestAnimationFrame(() => { isWaiting = false; drawAll(); });
  }
  function drawAll(only = panels.values()) {
    const shared = view();
    let isNew = false;
    for (const panel of only) if (!panel.isEmpty) { const before = panel.kept; panel.draw(shared); isNew ||= panel.kept !== before; }
    if (isNew) { collect(); showMarks(); }
    if (hot !== null) { const kept = hot; hot = null; heat(kept); }
    workspace.dataset.drawn = String(Number(workspace.dataset.drawn || 0) + 1);
  }

  function addressOf(element, panel, only) {
    const url = new URL(element.dataset.url, location.href);
    url.searchParams.set("x", choice.over);
    const version = page().searchParams.get("version");
    if (version) url.searchParams.set("version", version);
    if (only) url.searchParams.set("only", only.join(","));
    if (range && choice.over === "step" && !only && panel.isThinned) { url.searchParams.set("from", range[0]); url.searchParams.set("to", range[1]); }
    return url;
  }
  async function load(element, only = null) {
    const panel = panels.get(element), url = addressOf(element, panel, only), asked = (element.asked = (element.asked || 0) + 1);
    try {
      const response = await fetch(url, { headers: { Accept: "application/json" } });
      if (!response.ok) throw new Error(`the server answered ${response.status}`);
      const answer = await response.json();
      if (asked !== element.asked) return;
      accept(element, panel, answer, only);
      if (panel.isEmpty) element.textContent = "No run has this series over this axis.";
    } catch (error) {
      if (panel.isEmpty) element.textContent = `The curves could not be loaded (${error.message}). Reload the page.`;
    }
  }
  function accept(element, panel, answer, only) {
    panel.take(answer, { isPart: Boolean(only) });
    panel.isThinned = panel.isThinned || answer.runs.some((line) => line.thin);
    const unit = element.closest(".panel").querySelector("[data-unit]");
    if (unit && !only) {
      unit.dataset.note ??= unit.textContent;
      unit.textContent = [answer.unit, unit.dataset.note].filter(Boolean).join(", ") || `${answer.runs.length} run${answer.runs.length === 1 ? "" : "s"}`;
    }
    drawAll([panel]);
  }
  // What was never scrolled to is drawn before it is printed: the answers cannot be awaited there.
  addEventListener("beforeprint", () => {
    for (const [element, panel] of panels) {
      if (!panel.isEmpty) continue;
      const request = new XMLHttpRequest();
      request.open("GET", addressOf(element, panel, null), false);
      request.send();
      if (request.status === 200) accept(element, panel, JSON.parse(request.responseText), null);
    }
  });
  const seenOnce = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) if (isIntersecting) { seenOnce.unobserve(target); load(target); }
  }, { rootMargin: "400px" });
  const resized = new ResizeObserver((entries) => {
    for (const { target } of entries) { const panel = panels.get(target); if (panel?.isDrawn && (panel.width !== target.clientWidth || panel.height !== target.clientHeight)) redraw(); }
  });
  function adopt(element) {
    if (panels.has(element)) return;
    const panel = new window.parlabCurves(element);
    panels.set(element, panel);
    listen(element, panel);
    seenOnce.observe(element);
    resized.observe(element);
  }

  let cursor = null, moving = 0;
  function showCursor() {
    const first = [...new Set([hot, ...pinned, ...shownRunsInOrder].filter((n) => n !== null))];
    for (const panel of panels.values()) panel.cursor(cursor, first, nameOf);
  }
  function listen(element, panel) {
    let from = null;
    const place = (event) => { const box = panel.svg.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
    panel.svg.addEventListener("pointermove", (event) => {
      const [left, top] = place(event);
      if (from !== null) { panel.brush(from, left); return; }
      cancelAnimationFrame(moving);
      moving = requestAnimationFrame(() => { heat(panel.runAt(left, top)); cursor = panel.isDrawn ? panel.xAt(left) : null; showCursor(); });
    });
    panel.svg.addEventListener("pointerleave", () => { if (from !== null) return; cancelAnimationFrame(moving); heat(null); cursor = null; showCursor(); });
    panel.svg.addEventListener("pointerdown", (event) => {
      if (event.button || event.pointerType === "touch" || !panel.isDrawn) return;
      [from] = place(event);
      panel.svg.setPointerCapture(event.pointerId);
    });
    panel.svg.addEventListener("pointerup", (event) => {
      if (from === null) return;
      const [to, top] = place(event), began = from;
      from = null;
      panel.brush(null);
      if (Math.abs(to - began) < 6) { const n = panel.runAt(to, top); if (n !== null) pin(n); return; }
      if (panel.axis) return;
      const ends = [panel.xAt(began), panel.xAt(to)].sort((a, b) => a - b);
      zoom([Math.max(ends[0], panel.x0), Math.min(ends[1], panel.x1)]);
    });
    panel.svg.addEventListener("dblclick", () => { if (range) zoom(null); });
  }
  function zoom(ends) {
    range = ends;
    const text = (value) => Number(value.toPrecision(6));
    write({ x0: ends && text(ends[0]), x1: ends && text(ends[1]) });
    cursor = null;
    redraw();
    refine();
  }
  // A thinned curve has more to show of a part.
  let refining = 0;
  function refine() {
    clearTimeout(refining);
    refining = setTimeout(() => { for (const [element, panel] of panels) if (panel.isThinned && choice.over === "step") load(element); }, 150);
  }

  // ---------- events ----------
  workspace.addEventListener("click", (event) => {
    const eye = event.target.closest(".eye");
    if (eye) { hide(Number(eye.closest(".rl").dataset.run), { isAlone: event.altKey }); return; }
    const line = event.target.closest(".rl");
    if (line && !event.target.closest("a, button")) { current = Number(line.dataset.run); pin(current); return; }
    const chosen = event.target.closest("[data-pick], [data-unpick]");
    if (chosen) { compared(chosen.dataset.pick, chosen.dataset.unpick); return; }
    if (event.target.closest("[data-more-runs]")) { list().classList.add("all"); event.target.closest("[data-more-runs]").hidden = true; return; }
    const mark = event.target.closest(".panels svg [data-run], .panels [data-pin]");
    if (mark && !mark.closest(".curve")) pin(Number(mark.dataset.run ?? mark.dataset.pin));
  });
  workspace.addEventListener("pointerover", (event) => {
    const over = event.target.closest(".rl, .runs-table tr[data-run], .chip[data-run], .panels svg [data-run]");
    if (event.target.closest(".curve")) return;
    heat(over ? Number(over.dataset.run) : null);
  });
  workspace.addEventListener("pointerleave", () => heat(null));
  workspace.addEventListener("input", (event) => {
    if (event.target.matches("#runs [data-filter]")) { filter(); write({ filter: event.target.value.trim() }, { isNew: false }); }
    if (event.target.matches("[data-find-column]")) for (const label of workspace.querySelectorAll(".columns-menu label")) label.hidden = !label.textContent.toLowerCase().includes(event.target.value.toLowerCase());
    if (event.target.matches('[data-choice="smooth"]')) { choice.smooth = event.target.value; document.querySelector("[data-smooth]").textContent = choice.smooth; redraw(); }
  });
  workspace.addEventListener("change", (event) => {
    const field = event.target.closest("[data-choice]");
    if (field) {
      const name = field.dataset.choice;
      choice[name] = field.value;
      const plain = USUAL[name] === field.value;
      write({ [name]: plain ? null : field.value, ...(name === "over" ? { x0: null, x1: null } : {}) });
      follow(name);
    }
    if (event.target.matches("[data-number]")) { const url = page(); url.searchParams.set("number", event.target.value); location.assign(url.href.replaceAll("%2C", ",")); }
  });
  function follow(name) {
    if (name === "over") { range = null; for (const element of panels.keys()) load(element); }
    if (name === "group") { group(); filter(); }
    redraw();
  }
  addEventListener("popstate", () => {
    const before = { ...choice }, wasRange = String(range);
    read();
    if (before.over !== choice.over) for (const element of panels.keys()) load(element);
    else if (String(range) !== wasRange) refine();
    group();
    filter();
    showMarks();
    keepInTabs();
    redraw();
  });
  // ---------- the comparison: its runs are part of the address ----------
  function compared(added, removed, first) {
    const chosen = document.querySelector("[data-chosen-runs]");
    let runs = chosen.dataset.chosenRuns.split(",").filter(Boolean);
    if (added) runs.push(added);
    runs = runs.filter((n) => n !== removed);
    if (first) runs = [first, ...runs.filter((n) => n !== first)];
    const url = page();
    url.searchParams.delete("compare");
    url.searchParams.set("runs", runs.map((n) => byNumber.get(Number(n))?.pk).filter(Boolean).join(","));
    location.assign(url.href.replaceAll("%2C", ","));
  }
  workspace.addEventListener("change", (event) => { if (event.target.matches("[data-baseline]")) compared(null, null, event.target.value); });
  workspace.addEventListener("parlab:picked", () => {
    const chosen = document.querySelector("[data-chosen-runs]");
    if (!chosen) return;
    const url = page();
    url.searchParams.delete("runs");
    if (picked.size > 1) location.assign(url.href.replaceAll("%2C", ","));
  });

  // ---------- selected rows of the table ----------
  const bar = document.querySelector(".selection");
  const boxes = () => [...workspace.querySelectorAll("td.choice input[type=checkbox]")];
  function showSelection() { if (bar) bar.hidden = !boxes().some((box) => box.checked); }
  document.addEventListener("change", (event) => { if (event.target.matches("[data-choose-all], td.choice input")) setTimeout(showSelection); });
  bar?.querySelector("[data-choose-none]").addEventListener("click", () => {
    for (const box of boxes()) box.checked = false;
    boxes()[0]?.dispatchEvent(new Event("change", { bubbles: true }));
    showSelection();
  });

  // ---------- live ----------
  let typed = "";
  document.addEventListener("htmx:beforeSwap", (event) => { if (event.detail.target.id === "runs") typed = document.querySelector("#runs [data-filter]")?.value || ""; });
  document.addEventListener("htmx:afterSwap", (event) => {
    if (event.detail.target.id === "tab-live") { collect(); group(); filter(); showMarks(); showSelection(); }
    if (event.detail.target.id !== "runs" && event.target.id !== "runs") return;
    const before = new Map(data.runs.map((run) => [run.n, run.state]));
    take();
    const field = document.querySelector("#runs [data-filter]");
    if (field && typed) field.value = typed;
    group();
    filter();
    showMarks();
    showPicked();
    const follower = workspace.querySelector("[data-follows-runs]");
    if (follower) window.htmx.ajax("GET", location.href, { target: "#tab-live", select: "#tab-live", swap: "outerHTML" });
    const changing = data.runs.filter((run) => !run.final || before.get(run.n) !== run.state).map((run) => run.n);
    const grew = changing.length && changing.length < data.runs.length ? changing : null;
    if (changing.length) for (const [element, panel] of panels) if (panel.isDrawn || panel.isEmpty) load(element, panel.isEmpty ? null : grew);
    if (data.runs.some((run) => before.get(run.n) !== run.state)) workspace.dispatchEvent(new CustomEvent("parlab:ended"));
  });

  // ---------- keys ----------
  function step(by) {
    const rows = shownRows().filter((element) => element.matches(".rl")), at = rows.findIndex((element) => Number(element.dataset.run) === current);
    const next = rows[Math.max(0, Math.min(rows.length - 1, at < 0 ? (by > 0 ? 0 : rows.length - 1) : at + by))];
    if (!next) return;
    rows[at]?.classList.remove("at");
    next.classList.add("at");
    current = Number(next.dataset.run);
    next.scrollIntoView({ block: "nearest" });
    next.querySelector("a").focus({ preventScroll: true });
    heat(current);
  }
  const keys = {
    j: () => step(1), k: () => step(-1),
    h: () => current !== null && hide(current), c: () => current !== null && pick(current), x: () => current !== null && pick(current),
  };
  document.addEventListener("keydown", (event) => { if (event.key === "Escape" && event.target.matches("#runs [data-filter]")) event.target.blur(); });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, [contenteditable], dialog[open]")) return;
    if (!keys[event.key] || !list()) return;
    if (document.querySelector("main table.rows") && "jkx".includes(event.key)) return;
    event.preventDefault();
    keys[event.key]();
  });

  document.addEventListener("parlab:panel", () => { collect(); showMarks(); });

  const more = document.querySelector("[data-more-runs]"), LEFT_ON_PHONES = 4;
  read();
  take();
  if (more) { more.hidden = data.runs.length <= LEFT_ON_PHONES; more.textContent = `${data.runs.length - LEFT_ON_PHONES} more`; }
  group();
  filter();
  showSelection();
  showMarks();
  keepInTabs();
  workspace.querySelectorAll("[data-curve]").forEach(adopt);
})();
