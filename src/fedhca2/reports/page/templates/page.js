"use strict";
const figures = JSON.parse(document.getElementById("figures").textContent);
const tabs = [...document.querySelectorAll("[role=tab]")];
const PRINTED_WIDTH = 680;

// A figure is drawn when its tab is first shown, since hidden elements have no width. Drawing is synchronous, for printing.
function draw(section, width) {
  for (const box of section.querySelectorAll("[data-figure]")) {
    const { data, layout } = figures[box.dataset.figure];
    const size = width ? { width, autosize: false } : { width: undefined, autosize: true };
    if (box.dataset.drawn) {
      Plotly.relayout(box, size);
    } else {
      box.dataset.drawn = "yes";
      Plotly.newPlot(box, data, { ...layout, ...size }, { responsive: true, displaylogo: false });
    }
  }
}

function show(id) {
  const chosen = tabs.find((tab) => tab.getAttribute("aria-controls") === id) ?? tabs[0];
  for (const tab of tabs) {
    const selected = tab === chosen;
    tab.setAttribute("aria-selected", selected);
    tab.tabIndex = selected ? 0 : -1;
    document.getElementById(tab.getAttribute("aria-controls")).classList.toggle("shown", selected);
  }
  chosen.scrollIntoView({ block: "nearest", inline: "nearest" });
  draw(document.getElementById(chosen.getAttribute("aria-controls")));
}

for (const [i, tab] of tabs.entries()) {
  tab.addEventListener("click", () => {
    const id = tab.getAttribute("aria-controls");
    history.replaceState(null, "", `#${id}`);
    scrollTo(0, 0);
    show(id);
  });
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = tabs[(i + step + tabs.length) % tabs.length];
    next.focus();
    next.click();
  });
}

for (const slider of document.querySelectorAll("[data-moves]")) {
  const labels = JSON.parse(slider.dataset.labels);
  slider.addEventListener("input", () => {
    const id = slider.dataset.moves;
    slider.parentElement.querySelector("output").textContent = labels[slider.value];
    Plotly.restyle(document.querySelector(`[data-figure="${id}"]`), figures[id].changes[slider.value], [0]);
  });
}

// In print, every section is shown at the width of the paper.
function printing(begins) {
  document.body.classList.toggle("all", begins);
  if (begins) document.querySelectorAll("section").forEach((section) => draw(section, PRINTED_WIDTH));
  else draw(document.querySelector("section.shown"));
}
matchMedia("print").addEventListener("change", (event) => printing(event.matches));
addEventListener("beforeprint", () => printing(true));
addEventListener("afterprint", () => printing(false));

show(location.hash.slice(1));
