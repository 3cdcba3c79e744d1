// Import: drop files, check their sizes before the upload, show its progress.
"use strict";
(() => {
  const form = document.getElementById("import");
  const input = document.getElementById("files"), drop = document.getElementById("drop"), chosen = document.getElementById("chosen");
  const progress = document.getElementById("progress"), bar = progress.querySelector("progress"), label = progress.querySelector("span");
  const button = document.getElementById("preview");
  const limit = Number(form.dataset.limit);

  function sizeText(bytes) {
    const units = ["B", "KiB", "MiB", "GiB"];
    const power = Math.min(units.length - 1, Math.floor(Math.log2(Math.max(bytes, 1)) / 10));
    return `${(bytes / 1024 ** power).toPrecision(3)}\u202f${units[power]}`;
  }

  function show() {
    const files = [...input.files];
    chosen.replaceChildren(...files.map((file) => {
      const item = document.createElement("li");
      item.textContent = `${file.name}, ${sizeText(file.size)}`;
      return item;
    }));
    const size = files.reduce((sum, file) => sum + file.size, 0);
    input.setCustomValidity(size > limit ? `These files are ${sizeText(size)}, above the limit of ${sizeText(limit)}. Choose fewer, or ask an administrator to raise PARLAB_UPLOAD_LIMIT_MIB.` : "");
    // An empty form is not an error before it is submitted.
    if (files.length) input.reportValidity();
  }

  function say(text, value) {
    progress.hidden = false;
    label.textContent = text;
    if (value === undefined) bar.removeAttribute("value"); else bar.value = value;
  }

  function failed(text) {
    say(text, 0);
    bar.hidden = true;
    button.disabled = false;
  }

  input.addEventListener("change", show);
  for (const name of ["dragenter", "dragover"]) drop.addEventListener(name, (event) => { event.preventDefault(); drop.classList.add("over"); });
  for (const name of ["dragleave", "drop"]) drop.addEventListener(name, () => drop.classList.remove("over"));
  drop.addEventListener("drop", (event) => {
    event.preventDefault();
    if (!event.dataTransfer.files.length) return;
    input.files = event.dataTransfer.files;
    show();
  });

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    button.disabled = true;
    bar.hidden = false;
    const request = new XMLHttpRequest();
    request.open("POST", form.action);
    request.upload.addEventListener("progress", ({ loaded, total }) => {
      const share = Math.floor((100 * loaded) / total);
      say(share < 100 ? `Uploading, ${share} % of ${sizeText(total)}` : "Reading the files…", share < 100 ? share : undefined);
    });
    request.upload.addEventListener("load", () => say("Reading the files…"));
    request.addEventListener("error", () => failed("The connection was lost before the upload was complete. Check that the server is running, then try again."));
    request.addEventListener("load", () => {
      if (request.status === 413) return failed(request.responseText);
      if (request.status >= 500) return failed(`The server could not read the files (status ${request.status}). See the server log.`);
      if (request.responseURL !== form.action && request.status < 300) return location.assign(request.responseURL);
      // The response is the form with its errors.
      const page = new DOMParser().parseFromString(request.responseText, "text/html");
      failed(page.querySelector("[role=alert]")?.textContent || `The server answered with status ${request.status}. Reload the page.`);
    });
    request.send(new FormData(form));
  });
  addEventListener("pageshow", () => { button.disabled = false; show(); });
})();
// The address of a page that sends its reader to files opens them.
"use strict";
(() => {
  const open = () => { const files = document.getElementById(location.hash.slice(1)); if (files instanceof HTMLDetailsElement) files.open = true; };
  addEventListener("hashchange", open);
  open();
})();
