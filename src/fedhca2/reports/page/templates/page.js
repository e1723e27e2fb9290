"use strict";
const figures = JSON.parse(document.getElementById("figures").textContent);
const boxes = new Map([...document.querySelectorAll("[data-figure]")].map((box) => [box.dataset.figure, box]));
const tabs = [...document.querySelectorAll("[role=tab]")];
const sections = [...document.querySelectorAll("main > section")];
const PRINTED_WIDTH = 680, NARROW = 560;
const SIDEWAYS = ".scroll, .legend, [role=tablist]";
let onPaper = false;

// The theme: that of the system until the switch says otherwise.
const LOOKS = {
  light: { ink: "#1c2128", grid: "#e3e7eb", zero: "#8a939e", hover: "#ffffff",
    sequential: [[0, "#f2f5f8"], [0.5, "#6ba3cd"], [1, "#0a3d6b"]], diverging: [[0, "#2166ac"], [0.5, "#f7f7f7"], [1, "#b35806"]] },
  dark: { ink: "#e8eaed", grid: "#2d343d", zero: "#6d7783", hover: "#242a33",
    sequential: [[0, "#20262e"], [0.5, "#2f6f9f"], [1, "#bfe0f7"]], diverging: [[0, "#5aa2dc"], [0.5, "#262c35"], [1, "#f0954a"]] },
};
const darkSystem = matchMedia("(prefers-color-scheme: dark)");
const root = document.documentElement;

function isDark() {
  return !onPaper && (root.dataset.theme ?? (darkSystem.matches ? "dark" : "light")) === "dark";
}

function template() {
  const look = LOOKS[isDark() ? "dark" : "light"];
  const axis = { gridcolor: look.grid, zerolinecolor: look.zero, linecolor: look.grid, tickcolor: look.grid };
  const font = { family: "system-ui, sans-serif", size: 12, color: look.ink };
  const colorscale = { sequential: look.sequential, diverging: look.diverging };
  const hoverlabel = { bgcolor: look.hover, bordercolor: look.zero, font: { color: look.ink } };
  const bar = [{ error_x: { color: look.ink } }];
  return { data: { bar }, layout: { font, colorscale, hoverlabel, xaxis: axis, yaxis: axis, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)" } };
}

// On a phone, names of bars take several lines, and the numbers at their ends more of the axis.
function narrowed(layout, data) {
  const range = layout.xaxis.range, span = range ? range[1] - range[0] : 0;
  if (range) layout.xaxis.range = [range[0] - (range[0] < 0) * span / 4, range[1] + (range[1] > 0) * span / 4];
  const names = [...new Set(data.flatMap((trace) => trace.y))];
  const lines = (name) => name.split(/(?<=[ /-])/).reduce((all, word) => (all.at(-1).length + word.length > 14 ? [...all, word] : [...all.slice(0, -1), all.at(-1) + word]), [""]);
  Object.assign(layout.yaxis, { tickmode: "array", tickvals: names, ticktext: names.map((name) => lines(name).filter(Boolean).join("<br>")) });
  return layout;
}

// A figure is drawn when its tab is first shown, since hidden elements have no width. Drawing is synchronous, for printing.
function draw(section, width) {
  for (const box of section.querySelectorAll("[data-figure]")) {
    const { data, layout } = figures[box.dataset.figure];
    const size = width ? { width, autosize: false } : { width: undefined, autosize: true };
    const look = { ...size, template: template() };
    const drawn = `${isDark() ? "dark" : "light"} ${width ?? box.clientWidth}`;
    if (box.dataset.drawn === drawn) continue;
    const again = box.dataset.drawn;
    box.dataset.drawn = drawn;
    if (again) {
      Plotly.relayout(box, look);
    } else {
      box.style.height = `${layout.height}px`; // to which plotly returns when the window changes
      const across = data[0]?.orientation === "h" && (width ?? box.clientWidth) < NARROW;
      const own = structuredClone(layout);
      Plotly.newPlot(box, data, { ...(across ? narrowed(own, data) : own), ...look }, { responsive: true, displaylogo: false, displayModeBar: matchMedia("(hover: hover)").matches ? "hover" : false, modeBarButtonsToRemove: ["select2d", "lasso2d"] });
    }
  }
  section.querySelectorAll(SIDEWAYS).forEach(cue);
}

function redrawn() {
  const dark = isDark();
  document.getElementById("theme").setAttribute("aria-pressed", dark);
  const shown = document.querySelector("section.shown");
  if (shown) draw(shown); // the others when they are shown
}

document.getElementById("theme").addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  redrawn();
});
darkSystem.addEventListener("change", redrawn);

function show(id) {
  const chosen = tabs.find((tab) => tab.getAttribute("aria-controls") === id) ?? tabs[0];
  for (const tab of tabs) {
    const selected = tab === chosen;
    tab.setAttribute("aria-selected", selected);
    tab.tabIndex = selected ? 0 : -1;
    document.getElementById(tab.getAttribute("aria-controls")).classList.toggle("shown", selected);
  }
  chosen.scrollIntoView({ block: "nearest", inline: "nearest" });
  measured();
  draw(document.getElementById(chosen.getAttribute("aria-controls")));
}

for (const [i, tab] of tabs.entries()) {
  tab.addEventListener("click", () => {
    const id = tab.getAttribute("aria-controls");
    if (location.hash !== `#${id}`) history.pushState(null, "", `#${id}`);
    scrollTo(0, 0);
    show(id);
  });
  tab.addEventListener("keydown", (event) => {
    const last = tabs.length - 1;
    const next = { ArrowRight: i === last ? 0 : i + 1, ArrowLeft: i === 0 ? last : i - 1, Home: 0, End: last }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    tabs[next].focus();
    tabs[next].click();
  });
}

// The address, as the back button or a person changes it; other addresses, such as that of the content, select no tab.
addEventListener("hashchange", () => {
  const id = location.hash.slice(1);
  if (!id || sections.some((section) => section.id === id)) show(id);
});

// Sliders: their positions together select a change, the last slider's first.
for (const slider of document.querySelectorAll("[data-moves]")) {
  const labels = JSON.parse(slider.dataset.labels);
  slider.addEventListener("input", () => {
    const id = slider.dataset.moves;
    slider.parentElement.querySelector("output").textContent = labels[slider.value];
    slider.setAttribute("aria-valuetext", labels[slider.value]);
    const all = [...slider.closest("article").querySelectorAll("[data-moves]")];
    const place = all.reduce((sum, one) => sum * (Number(one.max) + 1) + Number(one.value), 0);
    const change = figures[id].changes[place];
    Plotly.restyle(boxes.get(id), change, Object.values(change)[0].map((_, trace) => trace));
  });
}

// The legend: a pressed label is brought out in every figure of its tab.
for (const button of document.querySelectorAll("[data-label]")) {
  button.addEventListener("click", () => {
    const section = button.closest("section");
    const pressed = button.getAttribute("aria-pressed") !== "true";
    section.querySelectorAll("[data-label]").forEach((one) => one.setAttribute("aria-pressed", pressed && one === button));
    for (const box of section.querySelectorAll("[data-drawn]")) {
      const own = figures[box.dataset.figure].data;
      if (!own.some((trace) => trace.meta !== undefined)) continue;
      const wanted = escaped(button.dataset.label);
      Plotly.restyle(box, { opacity: own.map((trace) => (!pressed || trace.meta === wanted ? trace.opacity ?? 1 : 0.12)) });
    }
  });
}

// Texts in figures have no markup: they are written as plotly reads them.
function escaped(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}
function unescaped(text) {
  return String(text).replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&amp;", "&");
}

// Tables: rows sort on click, numbers from high to low first.
for (const button of document.querySelectorAll(".sort")) {
  button.addEventListener("click", () => {
    const head = button.parentElement, table = head.closest("table"), body = table.tBodies[0];
    const column = [...table.querySelectorAll(".sort")].indexOf(button);
    const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
    const rows = [...body.rows];
    const known = rows.filter((row) => !["nan", "—", ""].includes(key(row)));
    const numeric = known.every((row) => Number.isFinite(Number(key(row))));
    const first = numeric ? "descending" : "ascending", second = numeric ? "ascending" : "descending";
    const order = head.getAttribute("aria-sort") === first ? second : first;
    const sign = order === "ascending" ? 1 : -1;
    known.sort((a, b) => sign * (numeric ? key(a) - key(b) : key(a).localeCompare(key(b), undefined, { numeric: true })));
    table.querySelectorAll("[aria-sort]").forEach((one) => one.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", order);
    body.append(...known, ...rows.filter((row) => !known.includes(row)));
  });
}
for (const input of document.querySelectorAll("[type=search]")) {
  input.addEventListener("input", () => {
    const wanted = input.value.trim().toLowerCase();
    const rows = [...input.closest("article").querySelector("tbody").rows];
    for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
    const count = rows.filter((row) => !row.hidden).length;
    input.parentElement.querySelector("output").textContent = wanted ? `${count} of ${rows.length}` : "";
  });
}

// What scrolls sideways says so while there is more, and the legend stays below the header.
function measured() {
  root.style.setProperty("--header", `${document.querySelector("header").offsetHeight}px`);
  document.querySelectorAll(SIDEWAYS).forEach(cue);
}
function cue(box) {
  box.classList.toggle("more-right", box.scrollWidth - box.clientWidth - box.scrollLeft > 4);
}
document.querySelectorAll(SIDEWAYS).forEach((box) => box.addEventListener("scroll", () => cue(box)));
addEventListener("resize", measured);

// Pictures: all of a row, large.
const zoom = document.getElementById("zoom");
for (const button of document.querySelectorAll(".picture")) {
  button.addEventListener("click", () => {
    const heads = [...button.closest("table").tHead.rows[0].cells].slice(1).map((head) => head.textContent);
    const cells = [...button.closest("tr").cells].slice(1);
    zoom.querySelector(".zoomed").replaceChildren(...cells.map((cell, i) => {
      const figure = document.createElement("figure"), caption = document.createElement("figcaption");
      caption.textContent = [heads[i], cell.querySelector(":scope > span")?.textContent].filter(Boolean).join(", ");
      figure.append(...[...cell.querySelectorAll("img, .line")].map((part) => part.cloneNode(true)), caption);
      return figure;
    }));
    zoom.showModal();
  });
}
zoom.addEventListener("click", (event) => event.target === zoom && zoom.close());

// The values of a figure as a table, for those who cannot see it.
for (const details of document.querySelectorAll(".values")) {
  details.addEventListener("toggle", () => {
    details.querySelector("table")?.remove();
    if (!details.open) return;
    const table = document.createElement("table");
    const add = (cells, tag) => {
      const row = table.insertRow();
      for (const text of cells) row.append(Object.assign(document.createElement(tag), { textContent: text ?? "—" }));
    };
    for (const trace of details.closest("article").querySelector("[data-figure]").data) {
      const name = unescaped(trace.name ?? "");
      if (trace.type === "heatmap") {
        add(["", ...trace.x.map(unescaped)], "th");
        trace.z.forEach((row, i) => add([unescaped(trace.y[i]), ...row], "td"));
      } else if (trace.q1) {
        add([name, trace.lowerfence, trace.q1, trace.median, trace.q3, trace.upperfence].flat(), "td");
      } else if (trace.hoverinfo !== "skip" && trace.x?.[0] !== null) {
        const across = trace.orientation === "h";
        add([name, ...(across ? trace.y : trace.text?.length ? trace.text : trace.x).map(unescaped)], "th");
        add(["", ...(across ? trace.x : trace.y)], "td");
      }
    }
    const box = Object.assign(document.createElement("div"), { className: "scroll", tabIndex: 0 });
    box.append(table);
    details.querySelector(".scroll")?.remove();
    details.append(box);
  });
}

// In print, every section is shown at the width of the paper, in light colours.
function printing(begins) {
  onPaper = begins;
  document.body.classList.toggle("all", begins);
  document.querySelectorAll("details:not(.values)").forEach((details) => (details.open = begins));
  if (begins) sections.forEach((section) => draw(section, PRINTED_WIDTH));
  else draw(document.querySelector("section.shown"));
}
matchMedia("print").addEventListener("change", (event) => printing(event.matches));
addEventListener("beforeprint", () => printing(true));
addEventListener("afterprint", () => printing(false));

redrawn();
show(location.hash.slice(1));
