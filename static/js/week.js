// The changes of the week: "a" opens the answer of the current row, or of the first open change, and Escape closes it.
document.addEventListener("keydown", (event) => {
  const field = event.target.closest("input, textarea, select");
  if (event.key === "Escape" && event.target.closest(".week-answer")) {
    const answer = event.target.closest(".week-answer");
    answer.open = false;
    answer.querySelector("summary").focus();
    return;
  }
  if (event.key !== "a" || field || event.ctrlKey || event.metaKey || event.altKey) return;
  const answer = document.querySelector("tr.current .week-answer") || document.querySelector(".week-answer");
  if (!answer) return;
  event.preventDefault();
  for (const other of document.querySelectorAll(".week-answer[open]")) other.open = other === answer;
  answer.open = true;
  answer.querySelector("input[name=reason]").focus();
});
