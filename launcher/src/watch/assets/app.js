// The page: settings, and data that is polled.

import { CHARTS, Chart } from "./charts.js";
import { knownAxes, Run } from "./curves.js";
import { el, settings } from "./dom.js";
import { KINDS } from "./marks.js";
import { showEvents, showGoodput, showRanks, showRuns } from "./panels.js";

const find = (id) => document.getElementById(id);
const THEMES = ["auto", "light", "dark"];

const state = {
  runs: [],
  revision: 0,
  /** Seconds between two requests. */
  period: 3,
  /** Server's clock less this one, seconds. */
  skew: 0,
  axis: settings.get("axis", "step"),
  smoothing: Number(settings.get("smoothing", "0.6")) || 0,
  log: settings.get("log", "false") === "true",
  marks: settings.get("marks", "true") === "true",
  choice: settings.get("theme", "auto"),
  now: () => Date.now() / 1000 + state.skew,
  theme: () => (state.choice === "auto" ? (dark.matches ? "dark" : "light") : state.choice),
};
const dark = matchMedia("(prefers-color-scheme: dark)");
const charts = CHARTS.map((definition) => new Chart(definition, state));

function draw() {
  charts.forEach((chart) => chart.update());
}

function show(haveCurvesChanged) {
  document.title = `${state.runs.map((run) => run.info.title).join(", ")} - lambert watch`;
  showRuns(find("runs"), state, () => show(true));
  showGoodput(find("goodput"), state);
  showRanks(find("ranks"), state);
  if (!haveCurvesChanged) return;
  showEvents(find("events"), state);
  const known = knownAxes(state.runs);
  for (const option of find("axis").options) option.disabled = !known.includes(option.value);
  if (!known.includes(state.axis)) state.axis = find("axis").value = "step";
  draw();
}

async function refresh() {
  try {
    const answer = await fetch(`/data?since=${state.revision}`, { cache: "no-store" });
    if (answer.status === 403) throw new Error("Access has ended: open the URL that lambert watch printed last.");
    if (!answer.ok) throw new Error(`lambert watch answered with status ${answer.status}; trying again.`);
    const data = await answer.json();
    while (state.runs.length < data.runs.length) state.runs.push(new Run(state.runs.length));
    const changes = data.runs.map((parts, index) => state.runs[index].apply(parts));
    const isFirst = state.revision === 0;
    Object.assign(state, { revision: data.revision, period: data.period, skew: data.now - Date.now() / 1000 });
    show(isFirst || changes.includes(true));
    find("connection").textContent = "";
    document.body.dataset.revision = String(data.revision);
  } catch (error) {
    const isLost = error instanceof TypeError;
    find("connection").textContent = isLost ? "No answer from lambert watch: showing the last data and trying again." : error.message;
  }
  setTimeout(refresh, state.period * 1000);
}

function showTheme() {
  document.documentElement.dataset.theme = state.choice;
  find("theme").textContent = `Theme: ${state.choice}`;
}

function setUp() {
  // The token was in the URL; now it is a cookie.
  history.replaceState(null, "", location.pathname);
  find("grid").append(...charts.map((chart) => chart.figure));
  const kinds = Object.entries(KINDS).map(([kind, name]) => el("span", {}, el("i", { class: `swatch mark-${kind}` }), name));
  find("legend").append(...kinds, el("span", {}, "dotted: undone steps"), el("span", {}, "dashed with dots: held out"), el("span", {}, "dashed with circles: extra held-out data"));
  const smoothing = find("smoothing");
  const showSmoothing = () => { find("smoothing-value").textContent = state.smoothing.toFixed(2); };
  find("axis").value = state.axis;
  smoothing.value = state.smoothing;
  find("log").checked = state.log;
  find("show-marks").checked = state.marks;
  showSmoothing();
  showTheme();
  const change = (id, event, apply) => find(id).addEventListener(event, ({ target }) => {
    apply(target);
    for (const name of ["axis", "smoothing", "log", "marks"]) settings.set(name, state[name]);
    draw();
  });
  change("axis", "change", (target) => { state.axis = target.value; });
  change("smoothing", "input", (target) => { state.smoothing = Number(target.value); showSmoothing(); });
  change("log", "change", (target) => { state.log = target.checked; });
  change("show-marks", "change", (target) => { state.marks = target.checked; charts.forEach((chart) => chart.plot?.redraw()); });
  find("theme").addEventListener("click", () => {
    state.choice = THEMES[(THEMES.indexOf(state.choice) + 1) % THEMES.length];
    settings.set("theme", state.choice);
    showTheme();
    draw();
  });
  find("controls").addEventListener("submit", (event) => event.preventDefault());
  dark.addEventListener("change", draw);
  refresh();
}

setUp();
