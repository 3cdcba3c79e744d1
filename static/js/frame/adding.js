// Adding what a page shows to a dashboard or to a report.
"use strict";
(() => {
  function say(text, href, title) {
    const line = document.createElement("p");
    line.className = "pinned";
    line.setAttribute("role", "status");
    line.append(text);
    if (href) line.append(" ", Object.assign(document.createElement("a"), { href, textContent: title }));
    document.querySelectorAll("p.pinned").forEach((old) => old.remove());
    document.querySelector("main").append(line);
    setTimeout(() => line.remove(), 8000);
  }
  // What changes a page in place changes its address as well (a colour, a node), and the choices of a figure change its own.
  function pageOf(button) {
    const { page = "", toReport, toDashboard } = button.dataset, plot = button.closest("figure")?.querySelector("[data-figure-url]");
    if (plot && (toReport ?? toDashboard) === "figure") return plot.dataset.figureUrl;
    return page.split("?")[0] === location.pathname ? location.pathname + location.search : page;
  }
  async function pin(button) {
    const isReport = "toReport" in button.dataset, places = button.closest("[data-pin-url], [data-dashboard-url]").dataset;
    const url = new URL(isReport ? places.pinUrl : places.dashboardUrl, location.href);
    url.search = location.search;
    button.disabled = true;
    try {
      const page = pageOf(button);
      const body = new URLSearchParams({ page, to: isReport ? "report" : "dashboard", panel: button.dataset.toReport ?? button.dataset.toDashboard, title: button.dataset.title ?? button.closest(".panel").querySelector("h3").textContent, csrfmiddlewaretoken: document.querySelector("[name=csrfmiddlewaretoken]").value });
      const response = await fetch(url, { method: "POST", body });
      const answer = await response.json();
      if (!response.ok) throw new Error(answer.problem);
      say(isReport ? "Added to the report" : "Added to the dashboard", answer.url, answer.title);
    } catch (error) {
      say(`Not added: ${error.message}`);
    } finally { button.disabled = false; }
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-to-report], [data-to-dashboard]");
    if (button) pin(button);
  });
})();
