// Picture upload: reject files above the size limit before they are sent.
"use strict";
(() => {
  const form = document.getElementById("upload");
  if (!form) return;
  const limit = Number(form.dataset.limit);
  form.elements.files.addEventListener("change", ({ target }) => {
    const large = [...target.files].find((file) => file.size > limit);
    const mib = (bytes) => `${(bytes / 2 ** 20).toPrecision(3)}\u202fMiB`;
    target.setCustomValidity(large ? `${large.name} is ${mib(large.size)}, above the limit of ${mib(limit)}. Make it smaller, or save it as JPEG.` : "");
    if (target.files.length) target.reportValidity();
  });
})();
