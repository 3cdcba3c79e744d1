// Curves of many runs as SVG. All panels of a page share the range of their x axis and one cursor; colours are classes of face.css.
"use strict";
window.parlabCurves = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const EDGE = { left: 42, right: 12, top: 8, bottom: 24 };
  const DASHES = ["", "5 3", "1.5 2.5"];
  const MOST_RAW = 12; // more thin lines under the smoothed ones cannot be told apart
  const BAND_PLACES = 90;
  const TIP_ROWS = 3;
  let made = 0;

  const node = (name, attributes, parent) => {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    parent?.append(element);
    return element;
  };

  function ticks(low, high, count) {
    const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].map((part) => part * power).find((part) => part >= rough * 0.999);
    const values = [];
    for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at += 1) values.push(Number((at * step).toPrecision(12)));
    return values;
  }

  const PREFIXES = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k", 1e3]];
  function axisText(value) {
    const size = Math.abs(value), prefix = PREFIXES.find(([from]) => size >= from);
    const shown = prefix ? value / (prefix[2] || prefix[0]) : value;
    return `${Number(shown.toPrecision(5))}`.replace("-", "−") + (prefix ? `\u202f${prefix[1]}` : "");
  }
  // Ticks of one axis have one number of decimals.
  function valueTexts(values) {
    const large = values.some((value) => Math.abs(value) >= 1e4);
    if (large) return values.map(axisText);
    const places = Math.min(8, Math.max(...values.map((value) => (`${value}`.split(".")[1] || "").length)));
    return values.map((value) => value.toLocaleString("en", { minimumFractionDigits: places, maximumFractionDigits: places }).replace("-", "−"));
  }
  function significant(value) {
    if (value === null || !Number.isFinite(value)) return "–";
    const size = Math.abs(value);
    if (size >= 1000) return Math.round(value).toLocaleString("en");
    return (size >= 1 ? value.toPrecision(4) : value === 0 ? "0" : value.toPrecision(3)).replace("-", "−");
  }

  // The running median: a spike does not move it. Values stay sorted while the window moves.
  function runningMedian(values, width) {
    if (width < 2) return values;
    const half = Math.floor(width / 2), window = [], result = new Array(values.length);
    const place = (value) => {
      let low = 0, high = window.length;
      while (low < high) { const middle = (low + high) >> 1; if (window[middle] < value) low = middle + 1; else high = middle; }
      return low;
    };
    const enter = (value) => { if (value !== null) window.splice(place(value), 0, value); };
    const leave = (value) => { if (value !== null) window.splice(place(value), 1); };
    for (let at = 0; at < Math.min(half, values.length); at += 1) enter(values[at]);
    for (let at = 0; at < values.length; at += 1) {
      if (at + half < values.length) enter(values[at + half]);
      if (at - half - 1 >= 0) leave(values[at - half - 1]);
      const count = window.length;
      result[at] = values[at] === null || !count ? values[at] : count % 2 ? window[count >> 1] : (window[count / 2 - 1] + window[count / 2]) / 2;
    }
    return result;
  }

  function nearest(xs, x) {
    let low = 0, high = xs.length - 1;
    while (low < high) { const middle = (low + high) >> 1; if (xs[middle] < x) low = middle + 1; else high = middle; }
    return low > 0 && x - xs[low - 1] < xs[low] - x ? low - 1 : low;
  }

  function quantile(sorted, share) {
    const at = share * (sorted.length - 1), low = Math.floor(at), high = Math.ceil(at);
    return sorted[low] + (sorted[high] - sorted[low]) * (at - low);
  }

  class Curves {
    constructor(element) {
      this.element = element;
      this.lines = new Map(); // number of a run -> {x, y, smooth}
      this.unit = "";
      this.svg = node("svg", { class: "fig curves", role: "img" });
      this.tip = document.createElement("div");
      this.tip.className = "tip";
      this.tip.hidden = true;
      element.replaceChildren(this.svg, this.tip);
      this.clip = `curves-${(made += 1)}`;
    }

    // Take the answer of the server; of some runs only, where they alone have changed.
    take(answer, { isPart = false } = {}) {
      if (!isPart) this.lines.clear();
      for (const { n, x, y, thin } of answer.runs) this.lines.set(n, { x, y, thin: Boolean(thin), smooth: new Map() });
      if (answer.runs.length || !isPart) Object.assign(this, { title: answer.title, unit: answer.unit, fromZero: answer.fromZero, warmup: answer.warmup, axis: answer.axis || "" });
      this.kept = null;
    }

    get isEmpty() { return !this.lines.size; }

    smoothed(line, width) {
      if (!line.smooth.has(width)) {
        if (line.smooth.size > 3) line.smooth.clear();
        line.smooth.set(width, runningMedian(line.y, width));
      }
      return line.smooth.get(width);
    }

    // view: {runs (in the order of the list), hidden, range, smooth, looks, bands (groups of runs, or null), apart, xTitle}
    draw(shared) {
      // A series with an axis of its own (`define_metric`) shares no range with panels over steps.
      const view = this.axis ? { ...shared, over: "axis", range: null, xTitle: this.axis } : shared;
      this.view = view;
      const { element } = this, width = element.clientWidth, height = element.clientHeight;
      if (!width || !height) return;
      const present = view.runs.filter((n) => this.lines.has(n)), drawn = present.filter((n) => !view.hidden.has(n));
      const narrow = width < 300 ? 3 : 5;
      this.width = width;
      this.height = height;
      this.drawn = drawn;
      const reach = this.reach(drawn);
      const [x0, x1] = view.range || reach;
      const bands = view.bands && this.bandsOf(view, x0, x1);
      const [y0, y1, values] = this.yRange(drawn, x0, x1, bands);
      Object.assign(this, { x0, x1, y0, y1 });
      const hasRaw = !bands && drawn.length <= MOST_RAW && view.smooth > 1;
      // Lines that are hidden stay in the figure: while its scales do not change, a class hides and shows them.
      const state = JSON.stringify([width, height, x0, x1, y0, y1, view.smooth, view.xTitle, hasRaw, [...(view.live || [])], bands ? [...view.hidden, "|", ...view.apart] : 0]);
      if (state === this.kept) return;
      this.kept = state;
      const right = width - EDGE.right, foot = height - EDGE.bottom, parts = [];
      for (const [at, text] of valueTexts(values).entries()) {
        const top = Math.round(this.y(values[at])) + 0.5;
        parts.push(`<path class="gl" d="M${EDGE.left} ${top}H${right}"/><text x="${EDGE.left - 6}" y="${top + 3.5}" text-anchor="end">${text}</text>`);
      }
      parts.push(`<path class="ax" d="M${EDGE.left} ${foot + 0.5}H${right}"/>`);
      const title = view.xTitle, room = right - 6.4 * title.length - 14;
      const across = ticks(x0, x1, narrow);
      if (view.over === "step" && !view.range && x0 >= 1 && x0 < across[0]) across.unshift(x0);
      let last = -Infinity;
      for (const value of across) {
        const at = this.x(value), text = axisText(value);
        if (at > room || at - last < 7 * text.length) continue;
        last = at;
        parts.push(`<text x="${at.toFixed(1)}" y="${foot + 15}" text-anchor="middle">${text}</text>`);
      }
      parts.push(`<text x="${right}" y="${foot + 15}" text-anchor="end">${title}</text>`);
      if (this.warmup > x0) {
        const end = Math.min(this.x(this.warmup), right);
        parts.push(`<rect class="wu" x="${EDGE.left}" y="${EDGE.top}" width="${Math.max(0, end - EDGE.left).toFixed(1)}" height="${foot - EDGE.top}"><title>Warm-up</title></rect>`);
      }
      parts.push(`<clipPath id="${this.clip}"><rect x="${EDGE.left - 4}" y="0" width="${right - EDGE.left + 8}" height="${foot + 4}"/></clipPath>`);
      parts.push(`<g clip-path="url(#${this.clip})" data-lines>`);
      if (bands) for (const band of bands) parts.push(this.bandMarkup(band));
      const alone = bands ? drawn.filter((n) => view.apart.has(n)) : present;
      // The first of the list lies on top.
      for (const n of [...alone].reverse()) parts.push(this.lineMarkup(n, hasRaw));
      parts.push('</g><path class="cur" d=""/><g data-dots></g><rect class="brush" hidden/>');
      const { svg } = this;
      svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      svg.setAttribute("width", width);
      svg.setAttribute("height", height);
      svg.setAttribute("aria-label", `${this.title || ""} of ${present.length} run${present.length === 1 ? "" : "s"}`);
      svg.innerHTML = parts.join("");
      this.cursorLine = svg.querySelector(".cur");
      this.dots = svg.querySelector("[data-dots]");
      this.brushed = svg.querySelector(".brush");
      this.layer = svg.querySelector("[data-lines]");
      this.isDrawn = true;
    }

    x(value) { return EDGE.left + ((value - this.x0) / (this.x1 - this.x0)) * (this.width - EDGE.left - EDGE.right); }
    y(value) { return this.height - EDGE.bottom - ((value - this.y0) / (this.y1 - this.y0)) * (this.height - EDGE.top - EDGE.bottom); }
    xAt(left) { return this.x0 + ((left - EDGE.left) / (this.width - EDGE.left - EDGE.right)) * (this.x1 - this.x0); }

    reach(drawn) {
      let low = Infinity, high = -Infinity;
      for (const n of drawn) { const { x } = this.lines.get(n); low = Math.min(low, x[0]); high = Math.max(high, x[x.length - 1]); }
      return high > low ? [low, high] : Number.isFinite(low) ? [low - 1, low + 1] : [0, 1];
    }

    yRange(drawn, x0, x1, bands) {
      let low = Infinity, high = -Infinity;
      const see = (value) => { if (value !== null && value < low) low = value; if (value !== null && value > high) high = value; };
      if (bands) for (const { low: lows, high: highs } of bands) { lows.forEach(see); highs.forEach(see); }
      const alone = bands ? drawn.filter((n) => this.view.apart.has(n)) : drawn;
      for (const n of alone) {
        const line = this.lines.get(n), values = this.smoothed(line, this.view.smooth);
        const whole = !this.fromZero && alone.length <= MOST_RAW; // thin lines of the values themselves
        for (let at = 0; at < values.length; at += 1) {
          if (line.x[at] < x0 || line.x[at] > x1) continue;
          see(values[at]);
          if (whole) see(line.y[at]);
        }
      }
      if (!(high >= low)) return [0, 1, [0, 1]];
      if (high === low) { const half = Math.abs(low) * 0.05 || 1; low -= half; high += half; }
      if (this.fromZero) low = Math.min(0, low);
      const values = ticks(low, high, 4), step = values[1] - values[0] || high - low;
      const top = values[values.length - 1] < high ? Math.min(values[values.length - 1] + step, high + step * 0.4) : high;
      if (top === values[values.length - 1] + step) values.push(top);
      return [this.fromZero ? low : low - (high - low) * 0.04, Math.max(top, high + (high - low) * 0.03), values];
    }

    path(xs, ys) {
      const [from, to] = this.seen(xs), kx = (this.width - EDGE.left - EDGE.right) / (this.x1 - this.x0), ky = (this.height - EDGE.top - EDGE.bottom) / (this.y1 - this.y0);
      const foot = this.height - EDGE.bottom;
      let text = "", isOpen = false;
      for (let at = from; at < to; at += 1) {
        const value = ys[at];
        if (value === null) { isOpen = false; continue; }
        text += `${isOpen ? "L" : "M"}${Math.round((EDGE.left + (xs[at] - this.x0) * kx) * 10) / 10} ${Math.round((foot - (value - this.y0) * ky) * 10) / 10}`;
        isOpen = true;
      }
      return text;
    }

    seen(xs) {
      if (xs[0] >= this.x0 && xs[xs.length - 1] <= this.x1) return [0, xs.length];
      let from = 0, to = xs.length;
      while (from + 1 < to && xs[from + 1] < this.x0) from += 1;
      while (to - 1 > from && xs[to - 2] > this.x1) to -= 1;
      return [from, to];
    }

    lineMarkup(n, hasRaw) {
      const line = this.lines.get(n), [colour, dash] = this.view.looks.get(n);
      const dashes = DASHES[dash] ? ` stroke-dasharray="${DASHES[dash]}"` : "";
      const raw = hasRaw ? `<path class="l thin s${colour}" d="${this.path(line.x, line.y)}"/>` : "";
      return `<g data-run="${n}">${raw}<path class="l s${colour}"${dashes} d="${this.path(line.x, this.smoothed(line, this.view.smooth))}"/>${this.endMarkup(n, line, colour)}</g>`;
    }

    // The last point of a run that goes on, and the only one of a run with one.
    endMarkup(n, line, colour) {
      const at = line.x.length - 1, value = this.smoothed(line, this.view.smooth)[at], isLive = this.view.live?.has(n);
      if ((!isLive && at) || value === null) return "";
      return `<circle class="${isLive ? "live-end " : ""}f${colour}" cx="${this.x(line.x[at]).toFixed(1)}" cy="${this.y(value).toFixed(1)}" r="3.5"/>`;
    }

    // In a panel of bands a line of its own comes and goes with the pointer.
    showAlone(n) {
      this.layer?.querySelector("[data-alone]")?.remove();
      if (n === null || !this.isDrawn || !this.view.bands || this.view.apart.has(n) || !this.lines.has(n) || this.view.hidden.has(n)) return;
      const group = node("g", { "data-alone": "", class: "hot" }, this.layer);
      group.innerHTML = this.lineMarkup(n, false);
      group.firstChild.classList.add("hot");
    }

    bandsOf(view, x0, x1) {
      const places = Array.from({ length: BAND_PLACES }, (_, at) => x0 + ((x1 - x0) * at) / (BAND_PLACES - 1));
      return view.bands.map(({ colour, runs }) => {
        const lines = runs.filter((n) => this.lines.has(n) && !view.hidden.has(n)).map((n) => this.lines.get(n));
        const at = lines.map(() => 0), low = [], middle = [], high = [];
        for (const x of places) {
          const values = [];
          lines.forEach((line, which) => {
            const ys = this.smoothed(line, view.smooth), { x: xs } = line;
            if (x < xs[0] || x > xs[xs.length - 1]) return;
            while (at[which] + 1 < xs.length && xs[at[which] + 1] <= x) at[which] += 1;
            if (ys[at[which]] !== null) values.push(ys[at[which]]);
          });
          values.sort((a, b) => a - b);
          low.push(values.length ? quantile(values, 0.1) : null);
          middle.push(values.length ? quantile(values, 0.5) : null);
          high.push(values.length ? quantile(values, 0.9) : null);
        }
        return { colour, places, low, middle, high };
      }).filter(({ middle }) => middle.some((value) => value !== null));
    }

    bandMarkup({ colour, places, low, middle, high }) {
      const inside = places.map((_, at) => at).filter((at) => low[at] !== null);
      const there = inside.map((at) => `${this.x(places[at]).toFixed(1)} ${this.y(high[at]).toFixed(1)}`);
      const back = inside.reverse().map((at) => `${this.x(places[at]).toFixed(1)} ${this.y(low[at]).toFixed(1)}`);
      return `<g class="group"><path class="band f${colour}" d="M${[...there, ...back].join("L")}Z"/><path class="l s${colour}" d="${this.path(places, middle)}"/></g>`;
    }

    valueAt(n, x) {
      const line = this.lines.get(n), at = nearest(line.x, x);
      return { x: line.x[at], y: this.smoothed(line, this.view.smooth)[at] };
    }

    // The run whose line is nearest to a point of the panel, if one is near.
    runAt(left, top) {
      if (!this.isDrawn) return null;
      const x = this.xAt(left);
      let best = null, least = 14;
      for (const n of this.drawn) {
        if (this.view.bands && !this.view.apart.has(n)) continue;
        const value = this.valueAt(n, x).y;
        const away = value === null ? Infinity : Math.abs(this.y(value) - top);
        if (away < least) { least = away; best = n; }
      }
      return best;
    }

    // first: runs in the order in which the label names them.
    cursor(x, first, nameOf) {
      if (!this.isDrawn) return;
      if (x === null || x < this.x0 || x > this.x1 || !this.drawn.length) {
        this.cursorLine.setAttribute("d", "");
        this.dots.replaceChildren();
        this.tip.hidden = true;
        return;
      }
      const left = this.x(x), shown = first.filter((n) => this.drawn.includes(n)).slice(0, TIP_ROWS);
      this.cursorLine.setAttribute("d", `M${Math.round(left) + 0.5} ${EDGE.top}V${this.height - EDGE.bottom}`);
      const rows = shown.map((n) => ({ n, colour: this.view.looks.get(n)[0], ...this.valueAt(n, x) }));
      this.dots.innerHTML = rows.filter(({ y }) => y !== null && y >= this.y0 && y <= this.y1)
        .map((row) => `<circle class="f${row.colour}" cx="${this.x(row.x).toFixed(1)}" cy="${this.y(row.y).toFixed(1)}" r="3" stroke="var(--surface)" stroke-width="1.5"/>`).join("");
      const { tip } = this, head = document.createElement("b");
      const step = rows.length ? rows[0].x : x;
      head.textContent = `${this.view.xTitle[0].toUpperCase()}${this.view.xTitle.slice(1)} ${axisText(Number(step.toPrecision(6)))}`;
      tip.replaceChildren(head, ...rows.map((row) => {
        const line = document.createElement("div"), mark = document.createElement("i"), name = document.createElement("span"), value = document.createElement("span");
        line.className = "r";
        mark.className = `b${row.colour}`;
        name.textContent = nameOf(row.n);
        value.textContent = `${significant(row.y)}${this.unit ? ` ${this.unit}` : ""}`;
        line.append(mark, name, value);
        return line;
      }));
      const more = this.drawn.length - rows.length;
      if (more > 0) { const rest = document.createElement("div"); rest.className = "muted"; rest.textContent = `${more} more`; tip.append(rest); }
      tip.hidden = false;
      const wide = tip.offsetWidth, onRight = left + 8 + wide < this.width;
      tip.style.left = `${onRight ? left + 6 : Math.max(0, left - wide - 6)}px`;
      tip.style.top = `${EDGE.top}px`;
    }

    brush(from, to) {
      if (!this.isDrawn) return;
      if (from === null) { this.brushed.setAttribute("hidden", ""); return; }
      const left = Math.min(from, to), wide = Math.abs(to - from);
      this.brushed.removeAttribute("hidden");
      for (const [name, value] of Object.entries({ x: left, y: EDGE.top, width: wide, height: this.height - EDGE.top - EDGE.bottom })) this.brushed.setAttribute(name, value);
    }
  }
  Curves.EDGE = EDGE;
  return Curves;
})();
