// The view of a trace: lanes by rank on a canvas, in the colours of the page. The server sends bars for the window that
// is shown, in the level of detail of the screen, so that a step costs the same whatever the size of the trace.
"use strict";
(() => {
  const view = document.getElementById("trace-view");
  if (!view) return;
  const canvas = view.querySelector("canvas"), detail = document.getElementById("trace-detail"), status = document.getElementById("trace-status");
  const search = document.getElementById("trace-search"), results = document.getElementById("trace-results");
  const ROW = 18, HEAD = 22, AXIS = 24, GUTTER = 132, SHORTEST_S = 1e-7;
  // Class of a kernel -> colour, in the order of the server's list of classes.
  const COLOURS = { "communication": "--data-vermillion", "memory copy": "--data-yellow", "attention": "--data-purple", "matrix product": "--data-blue",
    "convolution": "--data-blue", "norm": "--data-sky", "softmax and loss": "--data-sky", "optimizer": "--data-green", "embedding and index": "--data-orange",
    "reduction": "--data-orange", "pointwise": "--data-sky", "other": "--data-grey" };
  let outline = null, rows = [], colours = {}, shown = null, data = null, selected = null, hits = [], hit = -1;
  let asked = 0, timer = 0, drag = null;
  const token = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const width = () => canvas.clientWidth - GUTTER;

  const unitOf = (size) => size >= 1 || size === 0 ? [1, "s"] : size >= 1e-3 ? [1e3, "ms"] : size >= 1e-6 ? [1e6, "µs"] : [1e9, "ns"];

  function seconds(value) {
    const [factor, unit] = unitOf(Math.abs(value));
    return `${Number((value * factor).toPrecision(4))}\u202f${unit}`;
  }

  // A place in the window, with the digits that tell places apart that differ by a step.
  function moment(value, step) {
    const [factor, unit] = unitOf(Math.max(Math.abs(shown.begin), Math.abs(shown.end)));
    const digits = Math.ceil(-Math.log10(step * factor) - 1e-9);
    return `${(value * factor).toFixed(Math.min(Math.max(digits, 0), 9))}\u202f${unit}`;
  }

  function layOut() {
    rows = [];
    let top = AXIS;
    outline.ranks.forEach((rank, place) => {
      rows.push({ rank: place, head: true, top, text: `Rank ${rank.rank}${rank.host ? ` · ${rank.host}` : ""}` });
      top += HEAD;
      rank.lanes.forEach((lane, number) => {
        rows.push({ rank: place, lane: number, top, text: lane.depth ? "" : lane.title });
        top += ROW;
      });
      top += 6;
    });
    canvas.style.height = `${top + 8}px`;
  }

  const x = (at) => GUTTER + (at - shown.begin) / (shown.end - shown.begin) * width();

  function ticks() {
    const rough = (shown.end - shown.begin) / Math.max(2, width() / 130), power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
    const list = [];
    for (let at = Math.ceil(shown.begin / step) * step; at <= shown.end; at += step) list.push([at, moment(at, step)]);
    return list;
  }

  function draw() {
    const scale = devicePixelRatio || 1, high = canvas.clientHeight;
    canvas.width = canvas.clientWidth * scale;
    canvas.height = high * scale;
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    pen.font = `12px ${token("--font")}`;
    pen.textBaseline = "middle";
    if (!outline) return;
    colours = Object.fromEntries(Object.entries(COLOURS).map(([name, variable]) => [name, token(variable)]));
    const text = token("--text"), muted = token("--muted"), line = token("--line");
    pen.save();
    pen.beginPath();
    pen.rect(GUTTER, 0, width(), high);
    pen.clip();
    pen.fillStyle = muted;
    pen.strokeStyle = line;
    for (const [at, label] of ticks()) {
      const place = Math.round(x(at)) + 0.5;
      pen.beginPath(); pen.moveTo(place, AXIS - 6); pen.lineTo(place, high); pen.stroke();
      pen.fillText(label, place + 3, AXIS / 2);
    }
    for (const row of rows) if (!row.head) bars(pen, row, text);
    links(pen);
    pen.restore();
    for (const row of rows) {
      pen.fillStyle = row.head ? text : muted;
      pen.font = `${row.head ? "600 " : ""}12px ${token("--font")}`;
      if (row.text) pen.fillText(row.text, row.head ? 0 : 8, row.top + (row.head ? HEAD : ROW) / 2, row.head ? canvas.clientWidth : GUTTER - 12);
    }
  }

  function bars(pen, row, text) {
    const lane = data?.ranks[row.rank]?.lanes[row.lane], rank = outline.ranks[row.rank];
    if (!lane) return;
    for (let i = 0; i < lane.starts.length; i++) {
      const from = x(data.begin + lane.starts[i]), wide = Math.max(1, lane.lengths[i] / (shown.end - shown.begin) * width());
      if (from + wide < GUTTER || from > GUTTER + width()) continue;
      const name = lane.names[i];
      // A group of events is as opaque as the share of its time in which something runs.
      pen.globalAlpha = lane.busy ? 0.35 + 0.65 * Math.min(1, lane.busy[i] / (lane.lengths[i] || 1)) : 1;
      pen.fillStyle = rank.lanes[row.lane].kind === "phases" ? token("--data-grey") : colours[outline.classes[rank.name_classes[name]]];
      pen.fillRect(from, row.top + 1, wide > 3 ? wide - 1 : wide, ROW - 2);
      pen.globalAlpha = 1;
      if (selected && selected.row === row && selected.name === name && Math.abs(selected.begin - data.begin - lane.starts[i]) < SHORTEST_S) {
        pen.strokeStyle = text; pen.lineWidth = 2; pen.strokeRect(from, row.top + 1, Math.max(3, wide - 1), ROW - 2); pen.lineWidth = 1;
      }
      if (wide > 44 && !lane.busy) label(pen, rank.names[name], from, wide, row.top);
    }
  }

  function label(pen, name, from, wide, top) {
    const left = Math.max(from, GUTTER) + 4, room = from + wide - left - 4;
    if (room < 36) return;
    pen.save();
    pen.beginPath(); pen.rect(left, top, room, ROW); pen.clip();
    // A halo keeps the text legible on every colour of both themes.
    pen.strokeStyle = token("--surface"); pen.lineWidth = 3; pen.lineJoin = "round";
    pen.strokeText(name, left, top + ROW / 2 + 0.5);
    pen.fillStyle = token("--text");
    pen.fillText(name, left, top + ROW / 2 + 0.5);
    pen.restore();
  }

  // The same collective on all ranks: lines from bar to bar, for the selected one, or for few of them.
  function links(pen) {
    if (!data) return;
    const list = selected?.link ? data.links.filter((link) => link.name === selected.link.name) : data.links.length <= 24 ? data.links : [];
    pen.strokeStyle = token("--failed");
    for (const link of list) {
      const points = link.times.map(([rank, begin, end]) => {
        const place = outline.ranks.findIndex((row) => row.rank === rank);
        const row = rows.find((each) => each.rank === place && each.head);
        return row && [x(data.begin + begin), x(data.begin + end), row.top + HEAD];
      }).filter(Boolean);
      pen.globalAlpha = selected?.link ? 0.9 : 0.35;
      for (let i = 1; i < points.length; i++) {
        pen.beginPath(); pen.moveTo(points[i - 1][0], points[i - 1][2]); pen.lineTo(points[i][0], points[i][2]); pen.stroke();
      }
      pen.globalAlpha = 1;
    }
  }

  async function get(url, parameters) {
    const answer = await fetch(`${url}?${new URLSearchParams(parameters)}`, { headers: { Accept: "application/json" } });
    if (!answer.ok) throw new Error(`the server answered ${answer.status}; load the page again`);
    return answer.json();
  }

  async function load() {
    const number = ++asked, margin = (shown.end - shown.begin) / 2;
    try {
      const answer = await get(view.dataset.window, { begin: shown.begin - margin, end: shown.end + margin });
      if (number !== asked) return;
      data = answer;
      view.removeAttribute("aria-busy");
      const digit = (shown.end - shown.begin) / 1000;
      status.textContent = `${moment(shown.begin, digit)} to ${moment(shown.end, digit)} (${seconds(shown.end - shown.begin)})`;
      draw();
    } catch (error) {
      status.textContent = `Not loaded: ${error.message}.`;
    }
  }

  function show(begin, end) {
    const whole = outline.end - outline.begin;
    const length = Math.min(Math.max(end - begin, SHORTEST_S), whole * 1.1 || 1);
    const middle = Math.min(Math.max((begin + end) / 2, outline.begin), outline.end);
    shown = { begin: middle - length / 2, end: middle + length / 2 };
    history.replaceState(null, "", `#${shown.begin.toPrecision(9)},${shown.end.toPrecision(9)}`);
    draw(); // the bars at hand, until those of the new window arrive
    clearTimeout(timer);
    timer = setTimeout(load, 90);
  }

  const zoom = (factor, at = (shown.begin + shown.end) / 2) => show(at - (at - shown.begin) * factor, at + (shown.end - at) * factor);
  const pan = (share) => { const by = share * (shown.end - shown.begin); show(shown.begin + by, shown.end + by); };
  const fit = () => show(outline.begin, outline.end);

  function at(event) {
    const box = canvas.getBoundingClientRect();
    return { time: shown.begin + (event.clientX - box.left - GUTTER) / width() * (shown.end - shown.begin), y: event.clientY - box.top };
  }

  function barAt(event) {
    const { time, y } = at(event), row = rows.find((each) => !each.head && y >= each.top && y < each.top + ROW);
    const lane = row && data?.ranks[row.rank]?.lanes[row.lane];
    if (!lane) return null;
    const slack = 2 / width() * (shown.end - shown.begin), from = time - data.begin;
    const place = lane.starts.findIndex((start, i) => from >= start - slack && from <= start + lane.lengths[i] + slack);
    return place < 0 ? null : chosen(row, lane, place);
  }

  function chosen(row, lane, place) {
    const rank = outline.ranks[row.rank], name = lane.names[place], begin = data.begin + lane.starts[place], end = begin + lane.lengths[place];
    const isMessage = outline.classes[rank.name_classes[name]] === "communication";
    const link = isMessage && data.links.find((each) => each.times.some(([number, from]) => number === rank.rank && Math.abs(data.begin + from - begin) < 2e-6));
    return { row, name, text: rank.names[name], rank: rank.rank, begin, end, busy: lane.busy?.[place], link: link || null };
  }

  function select(bar) {
    selected = bar;
    detail.replaceChildren();
    if (bar) {
      const title = document.createElement("b");
      title.textContent = bar.busy === undefined ? bar.text : `Several events, the longest ${bar.text}`;
      const lane = outline.ranks[bar.row.rank].lanes[bar.row.lane].title;
      let more = ` · rank ${bar.rank}, ${lane} · at ${moment(bar.begin, bar.end - bar.begin || SHORTEST_S)} for ${seconds(bar.end - bar.begin)}`;
      if (bar.busy !== undefined) more += `, of these ${seconds(bar.busy)} busy; zoom in for single events`;
      if (bar.link) more += ` · ${bar.link.name}: rank ${bar.link.late} arrived last, ${seconds(bar.link.skew)} after the first`;
      detail.append(title, more);
    }
    draw();
  }

  // Bars in reading order for the arrow keys.
  function step(by) {
    const row = selected?.row || rows.find((each) => !each.head), lane = data?.ranks[row?.rank]?.lanes[row?.lane];
    if (!lane || !lane.starts.length) return;
    const now = selected ? lane.starts.findIndex((start) => Math.abs(data.begin + start - selected.begin) < SHORTEST_S) : -1;
    const place = Math.max(0, Math.min(lane.starts.length - 1, now + by));
    select(chosen(row, lane, place));
    if (selected.begin < shown.begin || selected.end > shown.end) pan(by > 0 ? 0.5 : -0.5);
  }

  function goTo(place) {
    if (!hits.length) return;
    hit = (place + hits.length) % hits.length;
    const [rank, lane, begin, end] = hits[hit], number = outline.ranks.findIndex((row) => row.rank === rank);
    const room = Math.max(6 * (end - begin), 1e-5);
    selected = { row: rows.find((row) => row.rank === number && row.lane === lane), name: -1, begin, end };
    show((begin + end) / 2 - room, (begin + end) / 2 + room);
    detail.textContent = `${hits.name} · rank ${rank} · at ${moment(begin, end - begin || SHORTEST_S)} for ${seconds(end - begin)} · ${hit + 1} of ${hits.length}${hits.more ? " nearest" : ""}`;
  }

  async function find() {
    results.replaceChildren();
    hits = [];
    if (!search.value.trim()) return;
    const answer = await get(view.dataset.search, { text: search.value, after: shown.begin });
    if (!answer.matches.length) { results.textContent = "No event has this text in its name."; return; }
    for (const match of answer.matches.slice(0, 8)) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = `${match.name.slice(0, 60)} · ${match.count} × · ${seconds(match.total)}`;
      button.addEventListener("click", () => { hits = match.at; hits.name = match.name; hits.more = match.count > match.at.length; goTo(0); });
      results.append(button);
    }
    results.querySelector("button").click();
  }

  const keys = { "+": () => zoom(0.5), "=": () => zoom(0.5), w: () => zoom(0.5), "-": () => zoom(2), s: () => zoom(2), a: () => pan(-0.3), d: () => pan(0.3),
    ArrowLeft: () => step(-1), ArrowRight: () => step(1), Home: fit, f: fit, n: () => goTo(hit + 1), p: () => goTo(hit - 1), Escape: () => select(null),
    Enter: () => selected && show(selected.begin - (selected.end - selected.begin), selected.end + (selected.end - selected.begin)) };
  canvas.addEventListener("keydown", (event) => {
    const act = !event.ctrlKey && !event.metaKey && !event.altKey && keys[event.key];
    if (!act || !shown) return;
    event.preventDefault();
    event.stopPropagation();
    act();
  });
  canvas.addEventListener("wheel", (event) => {
    if (!shown || !(event.ctrlKey || event.metaKey || event.shiftKey || document.activeElement === canvas)) return; // else the page scrolls
    event.preventDefault();
    if (event.shiftKey) pan(Math.sign(event.deltaY || event.deltaX) * 0.1);
    else zoom(event.deltaY > 0 ? 1.25 : 0.8, at(event).time);
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    if (!shown) return;
    drag = { x: event.clientX, begin: shown.begin, end: shown.end, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (drag && Math.abs(event.clientX - drag.x) > 3) {
      drag.moved = true;
      const by = (drag.x - event.clientX) / width() * (drag.end - drag.begin);
      show(drag.begin + by, drag.end + by);
    } else if (!drag && shown) {
      canvas.title = barAt(event)?.text || "";
    }
  });
  canvas.addEventListener("pointerup", (event) => {
    if (drag && !drag.moved) select(barAt(event));
    drag = null;
  });
  view.querySelectorAll("[data-act]").forEach((button) => button.addEventListener("click", () => { if (shown) keys[button.dataset.act](); canvas.focus({ preventScroll: true }); }));
  document.getElementById("trace-find").addEventListener("submit", (event) => { event.preventDefault(); if (shown) find(); });
  addEventListener("resize", draw);
  new MutationObserver(draw).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

  get(view.dataset.outline, {}).then((answer) => {
    outline = answer;
    layOut();
    const [begin, end] = location.hash.slice(1).split(",").map(Number);
    if (begin < end) show(begin, end); else fit();
    if (outline.missing.length) detail.textContent = `No lanes are stored for rank ${outline.missing.join(", ")}: import these traces again.`;
  }).catch((error) => { status.textContent = `Not loaded: ${error.message}.`; });
})();
