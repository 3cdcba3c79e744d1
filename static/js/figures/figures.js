// Draw every [data-figure-url] with Plotly, in the colours of the page, and again when #live reports more data.
"use strict";
(() => {
  const CONFIG = { displaylogo: false, displayModeBar: "hover", responsive: true };
  const drawings = new Map(); // element -> answer of the server
  // This script runs before Plotly's, so that the answers arrive while the browser compiles it.
  const loaded = window.Plotly ? Promise.resolve() : new Promise((resolve, reject) => {
    const script = document.querySelector("script[data-plotly]");
    script.addEventListener("load", resolve);
    script.addEventListener("error", () => reject(new Error("Plotly was not loaded")));
  });
  loaded.catch(() => {}); // each figure reports it

  // Asking for a style after a change of the page computes all styles again, so each token is asked once a theme.
  const tokens = { theme: "", values: new Map() };
  function token(name) {
    const { theme } = document.documentElement.dataset;
    if (theme !== tokens.theme) Object.assign(tokens, { theme, values: new Map() });
    if (!tokens.values.has(name)) tokens.values.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
    return tokens.values.get(name);
  }

  function colours() {
    const text = token("--text"), muted = token("--axis"), line = token("--line-2"), grid = token("--grid"), surface = token("--surface");
    const axis = { color: muted, linecolor: line, tickcolor: line, gridcolor: grid, zerolinecolor: line, title: { font: { color: muted } } };
    return { axis, font: { color: text }, legend: { font: { color: text } }, modebar: { bgcolor: surface, color: muted, activecolor: text },
      hoverlabel: { bgcolor: surface, bordercolor: line, font: { color: text } } };
  }

  // The palette of the server (charts/theme.py) and the token that has each colour in the theme of the page.
  const PALETTE = { "#0072b2": "--s1", "#d55e00": "--s2", "#009e73": "--s3", "#cc79a7": "--s4", "#e69f00": "--s5", "#56b4e9": "--s6", "#8a8f98": "--s7", "#f0e442": "--s8",
    "#8cbbdd": "--seq2", "#4a92c6": "--seq3", "#1f6aa8": "--seq4", "#0a4278": "--seq5" };
  const channels = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)).join(",");
  const FAINT = Object.fromEntries(Object.entries(PALETTE).map(([hex, name]) => [channels(hex), name]));
  function themed(value) {
    if (typeof value === "string") {
      const name = PALETTE[value.toLowerCase()];
      if (name) return token(name);
      const [, rgb, opacity] = value.match(/^rgba\((\d+, ?\d+, ?\d+), ?([\d.]+)\)$/) || [];
      const faint = rgb && FAINT[rgb.replace(/ /g, "")];
      return faint ? `rgba(${channels(token(faint))},${opacity})` : value;
    }
    if (Array.isArray(value)) return typeof value[0] === "number" || value[0] === null ? value : value.map(themed);
    if (!value || typeof value !== "object" || ArrayBuffer.isView(value) || "bdata" in value) return value;
    return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, key === "x" || key === "y" || key === "customdata" ? part : themed(part)]));
  }

  // A panel has its title, its unit and its legend around the plot: inside are lines, grid and ticks.
  const UNIT = /\(([^()]*)\)$/;
  const unitOf = (axis) => axis?.title?.text?.match(UNIT)?.[1] ?? "";
  const suffixOf = (axis) => unitOf(axis) || (axis?.title?.text || "").split(" ")[0].toLowerCase();
  function asPanel(layout) {
    const font = { ...layout.font, size: 11 }, { title, ...rest } = layout;
    const bare = (axis) => ({ ...axis, title: undefined, ticks: "", linewidth: 1, nticks: 6 });
    const axes = Object.keys(rest).filter((key) => /^yaxis\d*$/.test(key)).map((key) => [key, { ...bare(rest[key]), showline: false }]);
    const suffix = rest.xaxis?.type === "category" ? "" : suffixOf(rest.xaxis);
    const xaxis = { ...bare(rest.xaxis), ...(suffix && { ticksuffix: `\u00a0${suffix}`, showticksuffix: "last" }) };
    return { ...rest, font, ...Object.fromEntries(axes), xaxis, showlegend: false, margin: { l: 38, r: suffix ? 26 : 10, t: 8, b: 24 },
      meta: { ...rest.meta, x: rest.xaxis?.title?.text }, annotations: rest.annotations?.filter(({ name }) => name !== "line end") || [] };
  }
  // Lines have no marks but at their end, which pulses while the run is active.
  function panelData(data) {
    const lines = data.map((trace) => (trace.mode?.includes("lines") && trace.x?.length > 1 ? { ...trace, mode: "lines", line: { ...trace.line, width: 1.75 } } : trace));
    const first = lines.find((trace) => trace.mode === "lines" && Array.isArray(trace.y) && trace.y.length > 1);
    if (!first || data.some(({ type }) => type === "bar")) return lines;
    const at = first.y.length - 1;
    return [...lines, { x: [first.x[at]], y: [first.y[at]], mode: "markers", marker: { color: first.line?.color, size: 7 }, showlegend: false, hoverinfo: "skip", name: "" }];
  }
  // The value at the end of the first line, or the highest one of all lines.
  function valueLabel(element, data) {
    const line = element.dataset.label && data.find(({ mode, y }) => mode?.includes("lines") && Array.isArray(y) && y.length > 1);
    if (!line) return [];
    const highest = () => Math.max(...data.flatMap(({ mode, y }) => (mode?.includes("lines") && Array.isArray(y) ? y : [])));
    const value = element.dataset.label === "peak" ? highest() : line.y[line.y.length - 1];
    if (!Number.isFinite(value)) return [];
    const text = `${element.dataset.label === "peak" ? "peak " : ""}${value.toLocaleString("en", { maximumSignificantDigits: element.dataset.label === "peak" ? 3 : 4 })}`;
    // Beside a line that falls to its end there is room at the top right, above any other at the end itself.
    const falls = Number.isFinite(line.y[0]) && line.y[0] > value && element.dataset.label !== "peak";
    return [{ x: 1, y: falls ? 1 : value, xref: "x domain", yref: falls ? "y domain" : "y", text, showarrow: false, xanchor: "right", yanchor: falls ? "top" : "bottom", yshift: falls ? 0 : 5, font: { size: 11, color: token("--text"), weight: 600 }, name: "value" }];
  }
  function legendOf(element, data) {
    const place = element.closest("figure").querySelector("[data-legend]");
    const named = "plain" in element.dataset && element.dataset.plain ? [] : data.filter(({ name, showlegend }) => name && showlegend !== false);
    place.replaceChildren(...(named.length > 1 ? named.slice(0, 9) : []).map((trace) => {
      const entry = document.createElement("span"), key = document.createElement("i");
      const isDashed = trace.line?.dash && trace.line.dash !== "solid";
      key.classList.toggle("dashed", Boolean(isDashed));
      key.classList.toggle("striped", Boolean(trace.marker?.pattern?.shape));
      key.style.borderColor = key.style.backgroundColor = themed(trace.marker?.color?.length ? trace.marker.color : trace.line?.color || "") || "";
      entry.append(key, trace.name.replace(/<[^>]*>/g, " "));
      return entry;
    }));
  }

  function merged(base, more) {
    const result = { ...base };
    for (const [key, value] of Object.entries(more)) {
      const nested = value && typeof value === "object" && !Array.isArray(value);
      result[key] = nested ? merged(result[key] || {}, value) : value;
    }
    return result;
  }

  // Long names under an axis are broken into lines, where they would overlap or be turned.
  const NARROW = 560, CHARACTER = 6.4, LEAST = 8, LINES = 4;
  function broken(text, room) {
    const rows = [""];
    for (const word of text.split(" ")) {
      const row = rows[rows.length - 1];
      if (row && row.length + word.length + 1 > room) rows.push(word);
      else rows[rows.length - 1] = row ? `${row} ${word}` : word;
    }
    return rows.length > LINES ? [...rows.slice(0, LINES), "…"].join("<br>") : rows.join("<br>");
  }
  function wrapped(axis, width) {
    const texts = axis.ticktext?.every((text) => typeof text === "string") ? axis.ticktext : axis.type === "category" && !axis.tickvals ? axis.categoryarray : null;
    const room = texts && Math.floor((width - 110) / texts.length / CHARACTER);
    if (!texts || room < LEAST || texts.every((text) => text.length <= room)) return axis;
    return { ...axis, tickmode: "array", tickvals: axis.tickvals || texts, ticktext: texts.map((text) => broken(text, room)), tickangle: 0, autotickangles: undefined,
      title: { ...axis.title, standoff: 10 } }; // measured from the lines of the names
  }

  // So are names that would make the legend wider than the figure.
  function named(data, width) {
    const room = Math.floor((width - 90) / CHARACTER);
    return data.map((trace) => ((trace.name || "").length > room ? { ...trace, name: broken(trace.name, room) } : trace));
  }

  // A value beside an axis ends before the next axis, on two lines at most; the pointer shows all of it.
  function fitted(text, room) {
    if (text.length <= room || text.includes("&")) return text;
    const cut = text.lastIndexOf(" ", room), rest = cut > 0 ? text.slice(cut + 1) : "";
    const short = (part) => (part.length > room ? `${part.slice(0, Math.max(3, room - 1))}…` : part);
    return rest ? `${text.slice(0, cut)}<br>${short(rest)}` : short(text);
  }

  // In the page, title and subtitle are text of the page; in a picture they are part of the figure.
  // A panel has its title and little room: small text, and margins as those of its neighbours.
  const SMALL = 11;
  function inPanel(layout) {
    const axes = Object.keys(layout).filter((key) => /^[xy]axis\d*$/.test(key));
    const small = (axis) => merged(axis, { tickfont: { size: SMALL }, title: { font: { size: SMALL }, standoff: 6 } });
    const legend = { ...layout.legend, font: { ...layout.legend?.font, size: SMALL } };
    const hasLegend = layout.showlegend !== false;
    return { ...Object.fromEntries(axes.map((key) => [key, small(layout[key])])), font: { ...layout.font, size: SMALL }, legend,
      annotations: layout.annotations?.map((label) => ({ ...label, font: { ...label.font, size: SMALL } })),
      margin: { ...layout.margin, l: 52, t: hasLegend ? Math.min(layout.margin?.t ?? 40, 44) : 10, b: 40 } };
  }
  function inPage(layout, width, element) {
    const narrow = width < NARROW;
    const { title, ...rest } = layout;
    delete rest.height; // set by the style sheet
    if (rest.xaxis) rest.xaxis = wrapped(rest.xaxis, width);
    // A narrow figure has no room beside its lines: a legend above them takes over.
    if (narrow && rest.annotations?.some((label) => label.name === "line end")) {
      // The best point of a figure with a legend above is named below the point.
      rest.annotations = rest.annotations.filter((label) => label.name !== "line end").map((label) => label.name === "best" ? { ...label, ay: 22 } : label);
      rest.showlegend = true;
      rest.margin = { ...rest.margin, r: 16 };
    }
    // Labels on lines get the background of the page.
    const room = layout.meta?.axes && Math.floor((width - (layout.margin?.l ?? 80) - (layout.margin?.r ?? 24)) / (layout.meta.axes.length - 0.05) / CHARACTER) - 2;
    const behind = { bgcolor: token("--surface"), opacity: 0.85 };
    rest.annotations = rest.annotations?.map((label) => label.name === "axis value" ? { ...label, ...behind, text: fitted(label.text, room) }
      : label.name === "best" ? { ...label, ...behind } : label);
    const bare = element.closest(".bare");
    if (bare) {
      // Without width a legend leaves no room for the plot: it becomes text of the page, below.
      bare.classList.toggle("named-below", narrow && rest.showlegend !== false);
      if (narrow && bare.querySelector("[data-legend]")) rest.showlegend = false;
      Object.assign(rest, inPanel(rest));
    }
    // uirevision: the zoom stays when new points arrive.
    return coloured({ ...rest, autosize: true, uirevision: "kept" });
  }

  // Figures of several panels have an axis of values for each.
  function coloured(layout) {
    const { axis, ...others } = colours();
    const axes = Object.keys(layout).filter((key) => /^[xy]axis\d*$/.test(key));
    return merged(layout, { ...others, ...Object.fromEntries(axes.map((key) => [key, axis])) });
  }

  async function download(element, format) {
    const { layout } = drawings.get(element).figure;
    const legend = element.querySelector(".legend")?.getBoundingClientRect().height || 0;
    const picture = merged(coloured(themed(layout)), { paper_bgcolor: token("--surface"),
      title: { y: 1, yref: "container", yanchor: "top", pad: { t: 16 } }, margin: { t: 80 + legend, l: 64, r: 24, b: 56 } });
    // The width of the page gives the legend the same rows.
    const width = Math.max(480, element.clientWidth), height = element.clientHeight + 80;
    const url = await Plotly.toImage({ data: element.data, layout: picture }, { format, width, height, scale: format === "png" ? 2 : 1 });
    const link = document.createElement("a");
    link.href = url;
    link.download = `${location.pathname.split("/").filter(Boolean).join("-")}-${element.dataset.figure}.${format}`;
    link.click();
  }

  function buttons(element) {
    const icon = Plotly.Icons.camera;
    return [[
      { name: "png", title: "Download as PNG", icon, click: () => download(element, "png") },
      { name: "svg", title: "Download as SVG", icon: Plotly.Icons.disk, click: () => download(element, "svg") },
    ], ["zoom2d", "pan2d", "resetScale2d"]];
  }

  function showText(element, text) {
    if (element.classList.contains("js-plotly-plot")) Plotly.purge(element);
    element.isLinked = false;
    const message = document.createElement("p");
    message.className = "muted";
    message.textContent = text;
    element.classList.remove("tall");
    element.replaceChildren(message);
  }

  // Figures without data are hidden; a line below lists what they need: `Memory per rank: no run has finished.`
  function listMissing(frame, text) {
    const line = frame.parentElement?.parentElement?.querySelector(":scope > [data-missing-figures]");
    if (!line) return false;
    if (text) frame.dataset.missing = text;
    else delete frame.dataset.missing;
    frame.hidden = Boolean(text);
    const choices = document.querySelector("[data-figure-choices]");
    if (choices && !text) choices.hidden = false; // there is something to choose for
    const titles = new Map(); // reason -> titles
    for (const { dataset } of frame.parentElement.querySelectorAll("[data-missing]")) {
      const [title, ...reason] = dataset.missing.split(": ");
      titles.set(reason.join(": "), [...(titles.get(reason.join(": ")) || []), title]);
    }
    line.textContent = [...titles].map(([reason, of]) => `${of.join(", ")}: ${reason}`).join(" ");
    return frame.hidden;
  }

  // A long legend takes space from the plot, so the figure becomes taller.
  function needsRoom(element, figure) {
    const names = figure.data.filter((trace) => trace.showlegend !== false).map((trace) => (trace.name || "").length);
    const inRow = Math.max(1, Math.floor(element.clientWidth / (Math.max(...names) * 7 + 60)));
    return figure.layout.showlegend !== false && names.length / inRow > 3;
  }

  // Names at the ends of lines were placed for a plot of the usual height; here they are spread in the actual one.
  const ROW = 14;
  function spreadLabels(element) {
    const panels = new Set((element._fullLayout.annotations || []).filter(({ name }) => name === "line end").map(({ yref }) => yref));
    panels.forEach((yref) => spreadOf(element, yref));
  }
  function spreadOf(element, panel) {
    const { annotations } = element._fullLayout, yaxis = element._fullLayout[panel.replace("y", "yaxis")];
    const ends = annotations.map(({ name, y, yref }, place) => ({ name, yref, place, height: yaxis._length - yaxis.r2p(y) }))
      .filter(({ name, yref }) => name === "line end" && yref === panel).sort((a, b) => a.height - b.height);
    let above = -Infinity, moved = 0;
    for (const end of ends) {
      above = end.at = Math.max(end.height, above + ROW);
      moved += end.at - end.height;
    }
    // Labels were only moved up: the stack moves down by the mean, so that each stays near its line.
    for (const { place, at, height } of ends) {
      const shift = at - moved / ends.length - height, drawn = element.querySelector(`.annotation[data-index="${place}"]`);
      // A relayout would draw the figure a second time. The next one finds the shift in the layout.
      drawn?.setAttribute("transform", `translate(0,${annotations[place].yshift - shift})`);
      element.layout.annotations[place].yshift = annotations[place].yshift = shift;
    }
  }

  async function draw(element) {
    const { figure, empty, caption } = drawings.get(element);
    const frame = element.closest("figure");
    frame.querySelector("[data-caption]").textContent = caption;
    frame.querySelector("[data-numbers]").hidden = !figure;
    const { layout: told } = figure || {};
    frame.querySelector("[data-subtitle]").textContent = !told ? "" : "panel" in element.dataset ? told.meta?.unit ?? unitOf(told.yaxis) : told.title.subtitle.text;
    const heading = frame.querySelector("h3");
    if (told) heading.title = "panel" in element.dataset ? [told.title.subtitle.text, caption].filter(Boolean).join(". ") : "";
    if (figure) heading.textContent = heading.dataset.ownTitle || figure.layout.title.text; // panels of dashboards have names of their own
    element.setAttribute("aria-label", `${frame.querySelector("h3").textContent}. ${caption || empty}`);
    const isListed = listMissing(frame, figure ? "" : empty);
    if (!figure) {
      if (isListed && element.classList.contains("js-plotly-plot")) Plotly.purge(element);
      element.isLinked = false;
      if (!isListed) showText(element, empty);
      // If no more data can come, the note does not need the height of a plot.
      element.classList.toggle("blank", !document.querySelector("#live[hx-get]"));
    } else {
      if (!element.classList.contains("js-plotly-plot")) element.replaceChildren();
      element.classList.remove("blank");
      const isPanel = "panel" in element.dataset;
      const layout = inPage(themed(isPanel ? asPanel(figure.layout) : figure.layout), element.clientWidth, element);
      if (isPanel && range && isAlong(element, figure.layout)) layout.xaxis = { ...layout.xaxis, range: [...range], autorange: false };
      if (isPanel) layout.annotations = [...(layout.annotations || []), ...valueLabel(element, figure.data)];
      const visible = Math.min(element.clientWidth, frame.clientWidth - 32); // parallel coordinates scroll on a phone
      const data = themed(isPanel ? panelData(figure.data) : named(figure.data, visible));
      if (isPanel || frame.matches(".named-below")) legendOf(element, figure.data);
      if (element.clientWidth > frame.clientWidth) layout.legend = { ...layout.legend, entrywidth: element.clientWidth / 2 }; // one name a row
      element.classList.toggle("tall", !isPanel && ("tall" in element.dataset || needsRoom(element, { data, layout })));
      const panels = figure.layout.meta?.panels || 1;
      element.style.height = panels > 1 && !isPanel ? `${figure.layout.height}px` : "";
      element.classList.toggle("narrow", element.clientWidth < NARROW);
      await Plotly.react(element, data, layout, { ...CONFIG, modeBarButtons: buttons(element) });
      spreadLabels(element);
    }
    element.dataset.drawn = "1";
    element.dispatchEvent(new Event("parlab:drawn", { bubbles: true }));
    if (figure) link(element);
    if (figure && "refines" in element.dataset) watchZoom(element);
  }

  // Long curves are thinned; zooming in loads as many points of the visible part.
  function watchZoom(element) {
    if (element.isRefining) element.removeListener("plotly_relayout", element.isRefining);
    element.on("plotly_relayout", element.isRefining = (change) => {
      const from = change["xaxis.range[0]"] ?? change["xaxis.range"]?.[0], to = change["xaxis.range[1]"] ?? change["xaxis.range"]?.[1];
      if (change["xaxis.autorange"]) element.seen = null;
      else if (from === undefined || to === undefined) return;
      else element.seen = [from, to];
      refine(element);
    });
    // After drawing again, for another theme or with new points, the zoom stays.
    if (element.seen) refine(element);
  }

  // Figures of a page with the same horizontal axis share its range, and show what they have at the hovered position.
  const horizontal = (element) => element.layout?.meta?.x ?? element.layout?.xaxis?.title?.text;
  function linked(element) {
    if (document.getElementById("unlinked")?.checked) return [];
    const axis = horizontal(element);
    return drawn().filter((other) => other !== element && horizontal(other) === axis && other._fullLayout.xaxis.type === element._fullLayout.xaxis.type);
  }
  // The address holds the part of the common axis of the panels of a run, so that a link shows it and Back undoes it.
  const rangeOf = () => {
    const query = new URL(location.href).searchParams, ends = [query.get("x0"), query.get("x1")].map((text) => (text === null ? NaN : Number(text)));
    return ends.every(Number.isFinite) && ends[0] < ends[1] ? ends : null;
  };
  let range = rangeOf();
  const isAlong = (element, layout) => {
    const over = new URL(location.href).searchParams.get("x") ?? "step";
    return "panel" in element.dataset && (layout.xaxis?.title?.text || "").toLowerCase().startsWith(over);
  };
  function keepRange(element, from, to) {
    if (!isAlong(element, drawings.get(element).figure.layout)) return;
    range = from === undefined ? null : [from, to];
    const page = new URL(location.href), text = (value) => String(Number(value.toPrecision(6)));
    for (const [at, name] of ["x0", "x1"].entries()) if (range) page.searchParams.set(name, text(range[at])); else page.searchParams.delete(name);
    if (page.href !== location.href) history.pushState({ range: true }, "", page);
    chosenSearch = location.search;
  }
  async function showRange() {
    range = rangeOf();
    isFollowing = true;
    try {
      const along = drawn().filter((element) => isAlong(element, drawings.get(element).figure.layout));
      await Promise.all(along.map((element) => Plotly.relayout(element, range ? { "xaxis.range": [...range] } : { "xaxis.autorange": true })));
    } finally { isFollowing = false; }
  }
  let isFollowing = false; // a change that is passed on is not passed back
  function link(element) {
    if (element.isLinked) return;
    element.isLinked = true;
    element.on("plotly_relayout", async (change) => {
      if (isFollowing) return;
      const from = change["xaxis.range[0]"] ?? change["xaxis.range"]?.[0], to = change["xaxis.range[1]"] ?? change["xaxis.range"]?.[1];
      if (from === undefined && !change["xaxis.autorange"]) return;
      keepRange(element, from, to);
      isFollowing = true;
      try {
        const others = linked(element);
        await Promise.all(others.map((other) => Plotly.relayout(other, from === undefined ? { "xaxis.autorange": true } : { "xaxis.range": [from, to] })));
      } finally { isFollowing = false; }
    });
    element.on("plotly_hover", ({ xvals, points }) => {
      const at = xvals?.[0] ?? points[0].x;
      if (isFollowing || !element._fullLayout.hovermode?.startsWith("x")) return;
      isFollowing = true;
      try {
        for (const other of linked(element)) if (other._fullLayout.hovermode?.startsWith("x")) Plotly.Fx.hover(other, { xval: at }, "xy");
      } finally { isFollowing = false; }
    });
    element.on("plotly_unhover", () => { if (!isFollowing) for (const other of linked(element)) Plotly.Fx.unhover(other); });
  }

  async function refine(element) {
    const whole = drawings.get(element);
    if (!whole.thinned) return;
    const request = (element.refined = (element.refined || 0) + 1);
    const dressed = (data) => themed("panel" in element.dataset ? panelData(data) : named(data, element.clientWidth));
    if (!element.seen) return Plotly.react(element, dressed(whole.figure.data), element.layout);
    const url = new URL(element.dataset.figureUrl, location.href);
    url.searchParams.set("from", element.seen[0]);
    url.searchParams.set("to", element.seen[1]);
    const response = await fetch(url, { headers: { Accept: "application/json" } });
    if (!response.ok || request !== element.refined) return;
    const { figure } = await response.json();
    if (figure && request === element.refined) await Plotly.react(element, dressed(figure.data), element.layout);
    element.dataset.refined = request;
    element.dispatchEvent(new Event("parlab:drawn", { bubbles: true }));
  }

  // The page contains the answer of its first figure.
  function contained(element) {
    const script = element.querySelector("script[data-answer]");
    script?.remove();
    return script && JSON.parse(script.textContent);
  }
  async function requested(element) {
    const response = await fetch(element.dataset.figureUrl); // without headers, to take the answer that the page preloaded
    if (!response.ok) throw new Error(`the server answered ${response.status}`);
    return response.json();
  }

  async function load(element) {
    delete element.dataset.drawn;
    const request = (element.requests = (element.requests || 0) + 1);
    try {
      const answer = contained(element) || await requested(element);
      await loaded;
      if (request !== element.requests) return; // a newer request is under way
      drawings.set(element, answer);
      await draw(element);
    } catch (error) {
      showText(element, `The figure could not be drawn (${error.message}). Reload the page.`);
    }
  }

  // Visible figures come first; only a few are requested at a time, so that the first answers arrive early.
  const AT_ONCE = 2;
  const waiting = [];
  let active = 0;
  const isSeen = (element) => { const { top, bottom } = element.getBoundingClientRect(); return bottom > 0 && top < innerHeight; };
  function next() {
    while (active < AT_ONCE && waiting.length) {
      const at = Math.max(0, waiting.findIndex(isSeen));
      active += 1;
      load(waiting.splice(at, 1)[0]).finally(() => { active -= 1; next(); });
    }
  }
  function enqueue(elements) {
    for (const element of elements) {
      delete element.dataset.drawn;
      if (!waiting.includes(element)) waiting.push(element);
    }
    next();
  }

  const all = () => document.querySelectorAll("[data-figure-url]");
  const enqueueNew = () => enqueue([...all()].filter((element) => !element.requests && !element.closest("figure").hidden));
  enqueueNew();
  document.addEventListener("parlab:figures", enqueueNew); // figures that came into the page later
  document.addEventListener("parlab:again", () => enqueue([...all()].filter((element) => element.requests)));

  // Choices are part of the address of the page, so that a link shows the same figures.
  function choose(form) {
    const page = new URL(location.href);
    const chosen = new FormData(form);
    for (const name of new Set([...form.elements].map((element) => element.name).filter(Boolean))) {
      page.searchParams.delete(name);
      chosen.getAll(name).filter(Boolean).forEach((value) => page.searchParams.append(name, value));
    }
    if (chosen.get("x") !== (new URL(location.href).searchParams.get("x") ?? "step") && form.elements.x) { page.searchParams.delete("x0"); page.searchParams.delete("x1"); range = null; }
    // A step of the history, so that Back undoes the choice.
    if (page.href !== location.href) history.pushState({ choices: true }, "", page);
    chosenSearch = location.search;
    follow(form.dataset.figureChoices);
  }
  let chosenSearch = location.search;
  const withoutRange = (search) => { const query = new URLSearchParams(search); query.delete("x0"); query.delete("x1"); return query.toString(); };
  addEventListener("popstate", (event) => {
    if (event.state?.htmx || location.search === chosenSearch) return; // htmx loads the page again; a link within the page
    const before = withoutRange(chosenSearch);
    chosenSearch = location.search;
    if (String(rangeOf()) !== String(range)) showRange();
    if (before === withoutRange(chosenSearch)) return;
    document.querySelectorAll("[data-figure-choices]").forEach(showChoices);
    follow();
  });
  // Show the choices of the address; those that it does not name are as the server has sent them.
  function showChoices(form) {
    const { searchParams } = new URL(location.href);
    for (const control of form.elements) {
      if (!control.name || control.type === "hidden") continue;
      const values = searchParams.getAll(control.name), isNamed = values.length > 0;
      if (control.type === "checkbox" || control.type === "radio") control.checked = isNamed ? values.includes(control.value) : control.defaultChecked;
      else if (control.options) for (const option of control.options) option.selected = isNamed ? values.includes(option.value) : option.defaultSelected;
      else if ("defaultValue" in control) control.value = isNamed ? values[0] : control.defaultValue;
    }
  }
  // Draw the figures again that follow the address.
  function follow(only) {
    const followers = [...document.querySelectorAll("[data-follows]")].filter((element) => !only || only.split(" ").includes(element.dataset.figure));
    for (const element of followers) {
      const page = new URL(location.href).searchParams, own = new URLSearchParams(element.dataset.own || "");
      for (const name of own.keys()) page.delete(name); // a panel keeps its own series
      const query = [page.toString(), own.toString()].filter(Boolean).join("&");
      element.dataset.figureUrl = `${element.dataset.figureUrl.split("?")[0]}?${query}`;
      const numbers = element.closest("figure").querySelector("[data-numbers]");
      numbers.href = `${element.dataset.numbersUrl}?${query}`;
      if (element.classList.contains("js-plotly-plot")) Plotly.purge(element); // other axes: the zoom is reset
      element.seen = element.isRefining = null;
      element.isLinked = false;
    }
    enqueue(followers);
  }
  document.addEventListener("parlab:picture", ({ target, detail }) => { if (drawings.has(target)) download(target, detail); });
  document.addEventListener("parlab:address", () => follow());
  document.addEventListener("change", (event) => {
    const form = event.target.closest("[data-figure-choices]");
    if (form) choose(form);
  });
  // Another shape of the table keeps the choices of the figures in the address.
  document.addEventListener("htmx:configRequest", (event) => {
    if (event.detail.elt.id !== "shape") return;
    const page = new URL(location.href), form = document.querySelector("[data-figure-choices]");
    for (const { name } of form?.elements || []) {
      if (name && name !== "version" && page.searchParams.has(name)) event.detail.parameters[name] = page.searchParams.getAll(name);
    }
  });
  document.addEventListener("submit", (event) => {
    if (!event.target.matches("[data-figure-choices]")) return;
    event.preventDefault();
    choose(event.target);
  });

  let drawnFrom = document.getElementById("live")?.dataset.drawnFrom;
  document.addEventListener("htmx:afterSwap", () => {
    const now = document.getElementById("live")?.dataset.drawnFrom;
    if (now === drawnFrom) return enqueueNew(); // the search of a plan arrives after its prediction
    drawnFrom = now;
    drawings.forEach((_, element) => { if (!element.isConnected) drawings.delete(element); });
    enqueue(all());
  });
  // On paper a figure is as wide as the text; style sheets have no effect on Plotly.
  const PAPER = { width: 680, height: 340 };
  const drawn = () => [...drawings.keys()].filter((element) => element.isConnected && element.classList.contains("js-plotly-plot"));
  addEventListener("beforeprint", () => drawn().forEach((element) => Plotly.relayout(element, { autosize: false, ...PAPER })));
  addEventListener("afterprint", () => drawn().forEach((element) => Plotly.relayout(element, { autosize: true, width: null, height: null })));

  // Not relayout, which would replace each axis by its colours alone.
  document.addEventListener("parlab:theme", () => drawings.forEach((_, element) => draw(element)));
})();
