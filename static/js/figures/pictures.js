// A panel as a picture: its drawing with the styles of the page, its title above and its runs below.
"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg", PAD = 16, HEAD = 40, ROW = 18, SCALE = 2, MOST_NAMED = 24;
  const STYLES = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-opacity", "stroke-linejoin", "opacity", "font-family", "font-size", "font-weight", "text-anchor", "visibility"];
  const token = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const make = (name, attributes, text = "") => {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.textContent = text;
    return element;
  };

  // Colours are classes: a picture outside of the page needs their values.
  function styled(svg) {
    const copy = svg.cloneNode(true), from = svg.querySelectorAll("*"), to = copy.querySelectorAll("*");
    to.forEach((element, at) => {
      const style = getComputedStyle(from[at]);
      if (style.display === "none") { element.setAttribute("display", "none"); return; }
      for (const name of STYLES) element.setAttribute(name, style.getPropertyValue(name));
    });
    copy.querySelectorAll("a").forEach((link) => link.removeAttribute("href"));
    copy.querySelectorAll("[tabindex]").forEach((element) => element.removeAttribute("tabindex"));
    return copy;
  }

  // The runs of curves are named in the list of the page, which a picture has not.
  const namesOf = (panel) => (panel.querySelector("[data-curve]") ? [...document.querySelectorAll("#runs .rl:not(.off):not([hidden])")].slice(0, MOST_NAMED) : []);

  function picture(panel) {
    const svg = panel.querySelector(".body svg");
    if (!svg) return null;
    const width = Math.ceil(svg.clientWidth || svg.getBoundingClientRect().width), height = Math.ceil(svg.clientHeight || svg.getBoundingClientRect().height);
    const rows = namesOf(panel), across = Math.max(1, Math.floor(width / 150)), foot = Math.ceil(rows.length / across) * ROW;
    const whole = make("svg", { xmlns: SVG, width: width + 2 * PAD, height: height + HEAD + foot + PAD, "font-family": "Inter, sans-serif" });
    whole.append(make("rect", { width: "100%", height: "100%", fill: token("--surface") }));
    const unit = panel.querySelector("[data-unit]")?.textContent || "";
    whole.append(make("text", { x: PAD, y: 25, "font-size": 14, "font-weight": 600, fill: token("--text") }, panel.querySelector("h3").textContent));
    whole.append(make("text", { x: PAD + width, y: 25, "font-size": 12, "text-anchor": "end", fill: token("--muted") }, unit));
    const copy = styled(svg);
    Object.entries({ x: PAD, y: HEAD, width, height }).forEach(([key, value]) => copy.setAttribute(key, value));
    whole.append(copy);
    rows.forEach((row, at) => {
      const x = PAD + (at % across) * 150, y = HEAD + height + Math.floor(at / across) * ROW, key = row.querySelector("svg.key");
      if (key) { const drawn = styled(key); drawn.setAttribute("x", x); drawn.setAttribute("y", y); whole.append(drawn); }
      whole.append(make("text", { x: x + 24, y: y + 11, "font-size": 11, fill: token("--text") }, row.querySelector("a").textContent));
    });
    return whole;
  }

  function save(url, panel, format) {
    const link = document.createElement("a");
    link.href = url;
    link.download = `${location.pathname.split("/").filter(Boolean).join("-")}-${(panel.dataset.panel || panel.querySelector("h3").textContent).replace(/[^\w-]+/g, "-").toLowerCase()}.${format}`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
  }
  async function download(panel, format) {
    const drawn = picture(panel);
    if (!drawn) return;
    const url = URL.createObjectURL(new Blob([new XMLSerializer().serializeToString(drawn)], { type: "image/svg+xml" }));
    if (format === "svg") return save(url, panel, format);
    const image = new Image(), width = Number(drawn.getAttribute("width")), height = Number(drawn.getAttribute("height"));
    image.src = url;
    await image.decode();
    URL.revokeObjectURL(url);
    const canvas = Object.assign(document.createElement("canvas"), { width: SCALE * width, height: SCALE * height });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => save(URL.createObjectURL(blob), panel, format));
  }

  document.addEventListener("click", (event) => {
    const choice = event.target.closest("[data-picture]");
    if (!choice) return;
    const panel = choice.closest(".panel"), plot = panel.querySelector("[data-figure-url]");
    choice.closest("details").open = false;
    if (plot) plot.dispatchEvent(new CustomEvent("parlab:picture", { detail: choice.dataset.picture, bubbles: true }));
    else download(panel, choice.dataset.picture);
  });
})();
