// Import: drop files, see their sizes before they travel, and how far the upload is.
"use strict";
(() => {
  const form = document.getElementById("import");
  const input = document.getElementById("files"), drop = document.getElementById("drop"), chosen = document.getElementById("chosen");
  const progress = document.getElementById("progress"), bar = progress.querySelector("progress"), words = progress.querySelector("span");
  const button = document.getElementById("preview");
  const limit = Number(form.dataset.limit);

  function written(bytes) {
    const units = ["B", "KiB", "MiB", "GiB"];
    const power = Math.min(units.length - 1, Math.floor(Math.log2(Math.max(bytes, 1)) / 10));
    return `${(bytes / 1024 ** power).toPrecision(3)}\u202f${units[power]}`;
  }

  function show() {
    const files = [...input.files];
    chosen.replaceChildren(...files.map((file) => {
      const item = document.createElement("li");
      item.textContent = `${file.name}, ${written(file.size)}`;
      return item;
    }));
    const size = files.reduce((sum, file) => sum + file.size, 0);
    input.setCustomValidity(size > limit ? `These files are ${written(size)}, above the limit of ${written(limit)}. Choose fewer, or ask an administrator to raise PARLAB_UPLOAD_LIMIT_MIB.` : "");
    // An empty form is no mistake before somebody sends it.
    if (files.length) input.reportValidity();
  }

  function say(text, value) {
    progress.hidden = false;
    words.textContent = text;
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
      say(share < 100 ? `Uploading, ${share} % of ${written(total)}` : "Reading the files…", share < 100 ? share : undefined);
    });
    request.upload.addEventListener("load", () => say("Reading the files…"));
    request.addEventListener("error", () => failed("The connection broke before the upload was complete. Check that the server runs, then try again."));
    request.addEventListener("load", () => {
      if (request.status === 413) return failed(request.responseText);
      if (request.status >= 500) return failed(`The server could not read the files (it answered ${request.status}). Its log says why.`);
      if (request.responseURL !== form.action && request.status < 300) return location.assign(request.responseURL);
      // The form again, with what was wrong.
      const page = new DOMParser().parseFromString(request.responseText, "text/html");
      failed(page.querySelector("[role=alert]")?.textContent || `The server answered ${request.status}. Load the page again.`);
    });
    request.send(new FormData(form));
  });
  addEventListener("pageshow", () => { button.disabled = false; show(); });
})();
