// Learnt formats: a slot offers the units of its quantity only.
"use strict";
document.querySelectorAll("select[data-meaning]").forEach((meaning) => {
  const unit = meaning.closest("tr").querySelector("select[data-unit]");
  const options = [...unit.options];
  const usual = { time: "s", memory: "GiB", "FLOP/s": "TFLOP/s", share: "%", rate: "per second", number: "as printed" };
  function show(changed) {
    const dimension = meaning.selectedOptions[0].dataset.dimension;
    unit.hidden = !dimension;
    if (!dimension) return;
    unit.querySelectorAll("optgroup").forEach((group) => {
      group.hidden = ![...group.children].some((option) => option.dataset.dimension === dimension);
    });
    options.forEach((option) => { option.disabled = option.dataset.dimension !== dimension; });
    if (changed && unit.selectedOptions[0]?.dataset.dimension !== dimension) unit.value = `${dimension}:${usual[dimension]}`;
  }
  meaning.addEventListener("change", () => show(true));
  show(false);
});
