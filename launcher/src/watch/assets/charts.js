// Charts over uPlot, which /uplot.js defines as a global.

import { bisect, smooth } from "./curves.js";
import { colour, el, faint, format } from "./dom.js";
import { drawMarks, drawStages, marksNear } from "./marks.js";
import { tableView } from "./table.js";

export const PHASES = ["data_wait", "forward_backward", "communication", "optimizer", "checkpoint", "other"];
export const PHASE_NAMES = ["data wait", "forward and backward", "communication", "optimizer", "checkpoint", "other"];

/** Charts in the order of the page. */
export const CHARTS = [
  { id: "loss", title: "Loss of the main objective", unit: "nats", value: "loss", heldOut: "loss", log: true },
  { id: "total", title: "Loss of all objectives", unit: "nats", value: "total", heldOut: "total", log: true },
  { id: "learning_rate", title: "Learning rate", value: "learning_rate", log: true, rough: false },
  { id: "grad_norm", title: "Gradient norm", value: "grad_norm", log: true },
  { id: "samples", title: "Throughput, samples", unit: "samples/s", value: "samples_per_second" },
  { id: "tokens", title: "Throughput, tokens", unit: "tokens/s", value: "tokens_per_second" },
  { id: "utilization", title: "FLOPs utilization", unit: "%", value: "utilization", scale: 100 },
  { id: "phases", title: "Seconds of a step by phase", unit: "s", stacked: true },
];

/** Dashes of the extra held-out datasets. */
const DASHES = [[2, 4], [10, 3, 2, 3], [10, 6]];

export class Chart {
  constructor(definition, state) {
    Object.assign(this, { definition, state, plot: null, shape: "", zoomed: false });
    const { id, title, unit } = definition;
    const name = unit ? `${title} (${unit})` : title;
    this.name = name;
    this.host = el("div", {
      class: "plot", id: `plot-${id}`, tabindex: "0", role: "group", "aria-labelledby": `title-${id}`, "aria-describedby": `readout-${id}`,
    });
    this.readout = el("p", { class: "readout", id: `readout-${id}` });
    this.table = tableView(this);
    this.choice = definition.stacked ? el("select", { "aria-label": "Run of this chart", hidden: true }) : null;
    const side = el("span", {}, this.choice, " ", this.table.button);
    this.figure = el("figure", { "aria-labelledby": `title-${id}` },
      el("figcaption", {}, el("h3", { id: `title-${id}` }, name), side), this.host, this.readout, this.table.panel);
    if (definition.stacked) {
      this.figure.insertBefore(el("p", { class: "legend" },
        PHASE_NAMES.map((phase, index) => el("span", {}, el("i", { class: `swatch phase-${index}` }), phase))), this.readout);
      this.choice.addEventListener("change", () => this.update());
    }
    this.host.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.resize()).observe(this.host);
  }

  /** Visible runs with data; of a stacked chart only the chosen one. */
  runs() {
    const runs = this.state.runs.filter((run) => run.visible && run.columns.step.length > 0);
    if (!this.choice) return runs;
    return runs.filter((run) => String(run.index) === this.choice.value).concat(runs).slice(0, 1);
  }

  /** Draws the current data. */
  update() {
    if (this.choice) this.fillChoice();
    const runs = this.runs();
    const parts = this.definition.stacked ? this.stacked(runs) : this.lines(runs);
    const shape = JSON.stringify([parts.series.map((series) => [series.label, series.shape]), this.state.axis, this.state.theme(),
      this.state.log, runs.map((run) => run.index)]);
    if (!this.plot || shape !== this.shape) {
      this.shape = shape;
      this.zoomed = false;
      this.create(parts);
    } else {
      this.plot.setData(parts.data, !this.zoomed);
      if (this.zoomed) this.plot.redraw();
    }
    this.table.update();
    this.host.dataset.points = String(parts.data[0]?.length ?? 0);
  }

  fillChoice() {
    const runs = this.state.runs.filter((run) => run.visible);
    const chosen = this.choice.value;
    this.choice.replaceChildren(...runs.map((run) => el("option", { value: run.index }, run.info.title)));
    if (runs.some((run) => String(run.index) === chosen)) this.choice.value = chosen;
    this.choice.hidden = runs.length < 2;
  }

  /** Columns of a run as they are drawn. */
  column(run, name) {
    const { scale = 1, log } = this.definition;
    const values = run.columns[name] ?? [];
    const isShown = (value) => value !== null && !(log && this.state.log && value <= 0);
    return values.map((value) => (isShown(value) ? value * scale : null));
  }

  lines(runs) {
    const { axis, smoothing } = this.state, { value, heldOut, rough = true } = this.definition;
    const tables = [], series = [{}], bands = [];
    const isSmoothed = smoothing > 0 && rough;
    for (const run of runs) {
      const stroke = colour(run.colour), hasRange = run.width > 1;
      const mean = this.column(run, value), columns = [mean];
      series.push({ label: `${run.index} value`, stroke: isSmoothed ? faint(stroke, 0.3) : stroke, width: isSmoothed ? 1 : 1.5, points: { show: mean.length < 3 } });
      if (isSmoothed) {
        columns.push(smooth(mean, smoothing));
        series.push({ label: `${run.index} smooth`, stroke, width: 2, points: { show: false } });
      }
      if (hasRange) {
        columns.push(this.column(run, `${value}_max`), this.column(run, `${value}_min`));
        const hidden = { stroke: "transparent", width: 0, auto: false, points: { show: false } };
        bands.push({ series: [series.length, series.length + 1], fill: faint(stroke, 0.14) });
        series.push({ label: `${run.index} max`, ...hidden }, { label: `${run.index} min`, ...hidden });
      }
      tables.push(run.table(axis, columns));
      if (heldOut && run.evaluations.columns.step.length > 0) {
        tables.push(run.heldOut(axis, heldOut));
        series.push({ label: `${run.index} held out`, stroke, width: 1.5, dash: [6, 3], points: { show: true, size: 6, fill: stroke } });
        run.extra.forEach((dataset, index) => {
          tables.push(run.heldOut(axis, heldOut, dataset));
          series.push({ label: `${run.index} held out ${dataset}`, stroke, width: 1.5, dash: DASHES[index % DASHES.length], points: { show: true, size: 7, fill: colour("back") } });
        });
      }
    }
    const data = tables.length > 0 ? uPlot.join(tables) : [[]];
    return { series, bands, data };
  }

  stacked(runs) {
    const series = [{}];
    if (runs.length === 0) return { series, bands: [], data: [[]] };
    const columns = PHASES.map((phase) => this.column(runs[0], phase));
    const sums = columns.map((_, phase) => columns[0].map((_, row) =>
      columns.slice(0, phase + 1).reduce((sum, column) => sum + (column[row] ?? 0), 0)));
    const [x, ...data] = runs[0].table(this.state.axis, sums);
    // The highest first, so that the lower ones cover it.
    PHASES.forEach((phase, index) => {
      const fill = colour(`phase-${PHASES.length - 1 - index}`);
      series.push({ label: PHASES[PHASES.length - 1 - index], stroke: fill, fill, width: 1, points: { show: false } });
    });
    return { series, bands: [], data: [x, ...data.reverse()] };
  }

  create({ series, bands, data }) {
    this.plot?.destroy();
    const { axis, log } = this.state;
    const ticks = { stroke: colour("quiet"), grid: { stroke: colour("grid"), width: 1 }, ticks: { stroke: colour("grid") }, font: "12px system-ui, sans-serif" };
    const labels = (_, values) => values.map((value) => (value === null ? "" : short(value)));
    const isLog = Boolean(log && this.definition.log);
    const options = {
      ...this.size(),
      series, bands,
      legend: { show: false },
      cursor: { sync: { key: "step" }, drag: { x: true, y: false }, points: { show: false } },
      scales: {
        x: { time: false },
        y: isLog ? { distr: 3 } : this.definition.stacked ? { range: (_, min, max) => [0, (max || 1) * 1.05] } : {},
      },
      axes: [
        { ...ticks, values: labels, space: 60 },
        { ...ticks, values: labels, size: 64 },
      ],
      hooks: {
        drawClear: [(plot) => this.state.marks && this.runs().length > 0 && drawStages(plot, this.runs(), axis)],
        draw: [(plot) => this.state.marks && drawMarks(plot, this.runs(), axis, this.definition.value, this.definition.scale ?? 1)],
        setCursor: [(plot) => this.showCursor(plot)],
        setSelect: [(plot) => { this.zoomed ||= plot.select.width > 0; }],
      },
    };
    this.plot = new uPlot(options, data, this.host);
    this.plot.over.addEventListener("dblclick", () => { this.zoomed = false; });
    this.showCursor(this.plot);
  }

  size() {
    return { width: Math.max(160, this.host.clientWidth), height: this.host.clientHeight };
  }

  resize() {
    if (this.plot && this.plot.width !== this.size().width) this.plot.setSize(this.size());
  }

  /** Describes the points at the cursor, or the last ones. */
  showCursor(plot) {
    const { left } = plot.cursor, { axis, runs } = this.state;
    const isOver = left !== null && left !== undefined && left >= 0;
    const texts = this.runs().map((run) => {
      const x = run.columns[axis] ?? [];
      const row = isOver ? Math.min(bisect(x, plot.posToVal(left, "x")), x.length - 1) : x.length - 1;
      const name = runs.length > 1 ? `${run.info.title}: ` : "";
      return `${name}step ${run.columns.step[row]}, ${this.describe(run, row)}`;
    });
    if (isOver && this.state.marks) texts.push(...marksNear(plot, this.runs(), axis, left));
    this.readout.textContent = texts.join("; ");
  }

  describe(run, row) {
    const { value, scale = 1, unit = "", heldOut, stacked } = this.definition;
    if (stacked) return PHASES.map((phase, index) => `${PHASE_NAMES[index]} ${format(run.columns[phase][row], 3)} s`).join(", ");
    const at = (name) => (run.columns[name]?.[row] ?? null) === null ? null : run.columns[name][row] * scale;
    const hasRange = run.width > 1 && at(`${value}_min`) !== at(`${value}_max`);
    const range = hasRange ? ` (${format(at(`${value}_min`))} to ${format(at(`${value}_max`))})` : "";
    const { step } = run.evaluations.columns;
    const last = heldOut ? bisect(step, run.columns.step[row] + 1) - 1 : -1;
    const extra = run.extra.map((dataset) => `, ${dataset} ${format(run.heldOutColumn(heldOut, dataset)[last])}`).join("");
    const evaluation = last >= 0 ? `, held out ${format(run.heldOutColumn(heldOut)[last])}${extra} (step ${step[last]})` : "";
    return `${format(at(value))}${range} ${unit}`.trimEnd() + evaluation;
  }

  key(event) {
    const plot = this.plot;
    if (!plot || event.target !== this.host || event.ctrlKey || event.metaKey || event.altKey) return;
    const width = plot.over.clientWidth, { left } = plot.cursor;
    const move = (to) => {
      this.readout.setAttribute("aria-live", "polite");
      plot.setCursor({ left: Math.min(width, Math.max(0, to)), top: plot.over.clientHeight / 2 });
    };
    const from = left !== undefined && left >= 0 ? left : width;
    const zoom = (factor) => {
      const { min, max } = plot.scales.x, centre = plot.posToVal(Math.min(width, from), "x");
      this.zoomed = true;
      plot.setScale("x", { min: centre - (centre - min) * factor, max: centre + (max - centre) * factor });
    };
    const reset = () => {
      this.zoomed = false;
      plot.setData(plot.data);
    };
    const step = Math.max(1, width / 100);
    const actions = {
      ArrowLeft: () => move(from - step), ArrowRight: () => move(from + step), Home: () => move(0), End: () => move(width),
      "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), 0: reset,
    };
    if (actions[event.key]) {
      event.preventDefault();
      actions[event.key]();
    }
  }
}

/** Formats a tick. */
function short(value) {
  const size = Math.abs(value);
  const units = [[1e15, "e15"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
  if (size >= 1e18 || (size > 0 && size < 1e-3)) return value.toExponential().replace("e+", "e");
  const unit = units.find(([factor]) => size >= factor);
  return unit ? Number((value / unit[0]).toPrecision(4)) + unit[1] : String(Number(value.toPrecision(4)));
}
