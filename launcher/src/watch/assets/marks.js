// Stages, marks and undone steps, drawn into a chart.

import { colour, faint } from "./dom.js";

export const KINDS = {
  checkpoint: "checkpoint",
  restart: "restart",
  rollback: "rollback",
  skipped: "skipped samples",
  growth: "growth",
};

/** Shades every second stage of the longest run and names those with room. Called before the curves are drawn. */
export function drawStages(plot, runs, axis) {
  const last = (run) => run.columns.step.at(-1) ?? 0;
  const run = runs.reduce((longest, other) => (last(other) > last(longest) ? other : longest));
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
  ctx.textBaseline = "top";
  run.stages.forEach((stage, index) => {
    const from = index === 0 ? plot.scales.x.min : run.position(stage.from - 1, axis);
    const [left, right] = [from, run.position(stage.to, axis)].map((x) => plot.valToPos(x ?? 0, "x", true));
    ctx.fillStyle = colour("band");
    if (index % 2 === 1) ctx.fillRect(left, bbox.top, right - left, bbox.height);
    ctx.fillStyle = colour("quiet");
    const layers = stage.layers === null ? "" : ` (${stage.layers} layers)`;
    const text = stage.name + layers, start = Math.max(left, bbox.left), pad = 4 * devicePixelRatio;
    const hasRoom = ctx.measureText(text).width + 2 * pad < Math.min(right, bbox.left + bbox.width) - start;
    if (run.stages.length > 1 && hasRoom) ctx.fillText(text, start + pad, bbox.top + 3);
  });
  ctx.restore();
}

/** Draws marks and undone steps over the curves. `value` names the column of the undone steps, if the chart has them. */
export function drawMarks(plot, runs, axis, value, scale) {
  const { ctx, bbox } = plot, ratio = devicePixelRatio;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  for (const run of runs) {
    if (value) drawUndone(plot, run, axis, value, scale);
    for (const mark of run.marks) {
      const x = plot.valToPos(run.position(mark.step, axis) ?? 0, "x", true);
      ctx.strokeStyle = ctx.fillStyle = colour(`mark-${mark.kind}`);
      ctx.lineWidth = ratio;
      if (mark.kind === "checkpoint" || mark.kind === "skipped") {
        const bottom = bbox.top + bbox.height, size = 4 * ratio;
        ctx.beginPath();
        ctx.moveTo(x - size, bottom);
        ctx.lineTo(x + size, bottom);
        ctx.lineTo(x, bottom - 2 * size);
        ctx.fill();
      } else {
        ctx.setLineDash(mark.kind === "growth" ? [] : [4 * ratio, 3 * ratio]);
        ctx.beginPath();
        ctx.moveTo(x, bbox.top);
        ctx.lineTo(x, bbox.top + bbox.height);
        ctx.stroke();
        ctx.setLineDash([]);
      }
    }
  }
  ctx.restore();
}

function drawUndone(plot, run, axis, value, scale) {
  const { ctx } = plot;
  ctx.strokeStyle = faint(colour(run.colour), 0.45);
  ctx.lineWidth = 1.5 * devicePixelRatio;
  ctx.setLineDash([2 * devicePixelRatio, 2 * devicePixelRatio]);
  for (const line of run.undoneLines(axis, value)) {
    ctx.beginPath();
    line.forEach(([x, y], index) => {
      const at = [plot.valToPos(x, "x", true), plot.valToPos(y * scale, "y", true)];
      if (index === 0) ctx.moveTo(...at);
      else ctx.lineTo(...at);
    });
    ctx.stroke();
  }
  ctx.setLineDash([]);
}

/** Marks near a position in CSS pixels, as text. */
export function marksNear(plot, runs, axis, left) {
  const found = [];
  for (const run of runs) {
    for (const mark of run.marks) {
      const x = plot.valToPos(run.position(mark.step, axis) ?? 0, "x");
      if (Math.abs(x - left) <= 5) found.push(`${KINDS[mark.kind]} at step ${mark.step}: ${mark.text}`);
    }
  }
  return found.slice(-4);
}
