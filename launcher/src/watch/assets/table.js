// Table view of a chart.

import { PHASES, PHASE_NAMES } from "./charts.js";
import { el, format } from "./dom.js";

/** Maximum number of rows. */
const ROWS = 500;

/** Creates the button and the panel of a chart's table. */
export function tableView(chart) {
  const { id } = chart.definition;
  const panel = el("div", { id: `table-${id}`, class: "scroll", role: "region", tabindex: "0", "aria-label": `Table: ${chart.name}`, hidden: true });
  const button = el("button", { type: "button", "aria-expanded": "false", "aria-controls": panel.id, "aria-label": `Table: ${chart.name}` }, "Table");
  const update = () => {
    if (panel.hidden) return;
    const { scrollTop } = panel;
    panel.replaceChildren(table(chart));
    panel.scrollTop = scrollTop;
  };
  button.addEventListener("click", () => {
    panel.hidden = !panel.hidden;
    button.setAttribute("aria-expanded", String(!panel.hidden));
    update();
  });
  return { button, panel, update };
}

function table(chart) {
  const { definition, state } = chart, { value, heldOut, stacked, scale = 1 } = definition, runs = chart.runs();
  const hasRange = !stacked && runs.some((run) => run.width > 1);
  const values = stacked ? PHASES : hasRange ? [value, `${value}_min`, `${value}_max`] : [value];
  const titles = stacked ? PHASE_NAMES : hasRange ? ["mean", "minimum", "maximum"] : ["value"];
  const axis = state.axis === "step" ? [] : [state.axis === "flops" ? "FLOPs" : state.axis];
  const datasets = heldOut ? [undefined, ...new Set(runs.flatMap((run) => run.extra))] : [];
  const count = runs.reduce((sum, run) => sum + run.columns.step.length, 0), stride = Math.ceil(count / ROWS) || 1;
  const rows = runs.flatMap((run) => {
    const { step: evaluated } = run.evaluations.columns;
    const last = run.columns.step.length - 1;
    const shown = [...run.columns.step.keys()].filter((row) => (last - row) % stride === 0);
    return shown.map((row, index) => {
      const step = run.columns.step[row], before = index > 0 ? run.columns.step[shown[index - 1]] : -1;
      const cells = [step, ...axis.map(() => run.columns[state.axis]?.[row])];
      cells.push(...values.map((name) => (run.columns[name]?.[row] ?? null) === null ? null : run.columns[name][row] * scale));
      const at = evaluated.findLastIndex((at) => at > before && at <= step);
      if (heldOut) cells.push(...datasets.map((dataset) => run.heldOutColumn(heldOut, dataset)[at]));
      return el("tr", {}, el("td", {}, run.info.title), cells.map((cell) => el("td", { class: "number" }, format(cell))));
    });
  });
  const names = ["step", ...axis, ...titles, ...datasets.map((dataset) => dataset === undefined ? "held out" : `held out: ${dataset}`)];
  const caption = stride > 1 ? `${chart.name}: every ${stride}th of ${count} rows` : chart.name;
  return el("table", {}, el("caption", {}, caption),
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "run"), names.map((name) => el("th", { scope: "col", class: "number" }, name)))),
    el("tbody", {}, rows));
}
