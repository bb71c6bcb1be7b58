// Data of a run as the server sends them, in parts.

const AXES = ["step", "samples", "tokens", "hours", "flops"];

export class Run {
  constructor(index) {
    this.index = index;
    this.colour = `run-${index % 8}`;
    this.info = { title: "", notes: [], ranks: [] };
    this.columns = { step: [] };
    this.width = 1;
    this.undone = { step: [], attempt: [] };
    this.evaluations = { columns: { step: [] }, unigram_entropy: null, extra: {} };
    this.stages = [];
    this.marks = [];
    this.visible = true;
  }

  /** Applies what is new; true if the curves have changed. */
  apply(parts) {
    if (parts.info) this.info = parts.info;
    if (parts.series) {
      const { from, width, columns } = parts.series;
      const old = width === this.width ? this.columns : {};
      for (const [name, values] of Object.entries(columns)) {
        columns[name] = (old[name] ?? []).slice(0, from).concat(values);
      }
      this.columns = columns;
      this.width = width;
    }
    for (const name of ["undone", "evaluations", "stages", "marks"]) if (parts[name]) this[name] = parts[name];
    return ["series", "undone", "evaluations", "stages", "marks"].some((name) => parts[name]);
  }

  /** Position of a step on an axis, interpolated between buckets and extrapolated after the last one. */
  position(step, axis) {
    const steps = this.columns.step, values = this.columns[axis];
    if (axis === "step" || steps.length === 0) return step;
    const after = bisect(steps, step);
    const high = Math.min(after, steps.length - 1);
    const [step0, value0] = high > 0 ? [steps[high - 1], values[high - 1]] : [0, 0];
    if (value0 === null || values[high] === null) return null;
    const slope = (values[high] - value0) / Math.max(1, steps[high] - step0);
    return value0 + slope * (step - step0);
  }

  /** Table for uPlot: x, then the named columns. Rows without x are left out. */
  table(axis, columns) {
    const x = this.columns[axis] ?? [];
    const rows = [...x.keys()].filter((row) => x[row] !== null && (row === 0 || x[row] > x[row - 1]));
    return [rows.map((row) => x[row]), ...columns.map((column) => rows.map((row) => column[row] ?? null))];
  }

  /** Held-out values: x and y. `dataset` is an extra dataset; absent: the first one. */
  heldOut(axis, name, dataset) {
    const { step } = this.evaluations.columns, values = this.heldOutColumn(name, dataset);
    const rows = step.map((at, row) => [this.position(at, axis), values?.[row] ?? null]).filter(([x]) => x !== null);
    return [rows.map(([x]) => x), rows.map(([, y]) => y)];
  }

  /** Held-out values by row of the evaluations. */
  heldOutColumn(name, dataset) {
    const columns = dataset === undefined ? this.evaluations.columns : this.evaluations.extra[dataset];
    return columns?.[name] ?? [];
  }

  /** Names of the extra held-out datasets. */
  get extra() {
    return Object.keys(this.evaluations.extra);
  }

  /** Undone steps by attempt: lists of x and y. */
  undoneLines(axis, name) {
    const lines = new Map();
    this.undone.step.forEach((step, row) => {
      const x = this.position(step, axis), y = this.undone[name]?.[row];
      const attempt = this.undone.attempt[row];
      if (!lines.has(attempt)) lines.set(attempt, []);
      if (x !== null && y !== null && y !== undefined) lines.get(attempt).push([x, y]);
    });
    return [...lines.values()];
  }
}

/** First index whose value is not below `value`. */
export function bisect(sorted, value) {
  let low = 0, high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Debiased exponential moving average, as in TensorBoard; nulls are skipped. */
export function smooth(values, weight) {
  let last = 0, count = 0;
  return values.map((value) => {
    if (value === null || value === undefined) return null;
    last = last * weight + (1 - weight) * value;
    count += 1;
    return last / (1 - weight ** count);
  });
}

/** Axes that all runs have. */
export function knownAxes(runs) {
  const known = (axis) => runs.every((run) => (run.columns[axis] ?? []).every((value) => value !== null));
  return AXES.filter(known);
}
