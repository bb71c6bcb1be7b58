// Runs, goodput, ranks and events.

import { duration, el, format, gib, replace } from "./dom.js";
import { KINDS } from "./marks.js";

/** Seconds without a heartbeat that are marked; as in status/attention.rs. */
const SILENT = 30;

/** Shows the state of each run; `toggle(run)` is called when a run is shown or hidden. */
export function showRuns(list, state, toggle) {
  while (list.children.length < state.runs.length) list.append(runItem(state.runs[list.children.length], toggle));
  state.runs.forEach((run, index) => {
    const { info } = run, [label, details] = list.children[index].children;
    replace(label.lastElementChild, info.title);
    const left = info.seconds_left === null ? "" : `, ${duration(info.seconds_left)} left`;
    const rate = info.state === "training" && info.samples_per_second > 0 ? `, ${format(info.samples_per_second)} samples/s` : "";
    const memory = info.peak_memory ? `, peak memory ${gib(info.peak_memory)} per rank` : "";
    const lines = [
      `${info.state ?? "not started"}${info.updated ? `, updated ${duration(state.now() - info.updated)} ago` : ""}`,
      `step ${info.step} of ${info.steps}${rate}${left}${memory}`,
      ...(info.goodput.length > 0 ? [goodput(info.goodput)] : []),
      `attempt ${info.attempt}${info.restarts ? `, ${info.restarts} restart${info.restarts > 1 ? "s" : ""}` : ""}${info.checkpoint ? `, checkpoint ${info.checkpoint}` : ""}`,
    ];
    const progress = el("progress", { max: Math.max(1, info.steps ?? 0), value: info.step ?? 0, "aria-label": `Progress of ${info.title}` });
    replace(details, el("p", { class: "quiet" }, info.url), (info.state ? lines : []).map((line) => el("p", {}, line)), progress,
      info.notes.map((note) => el("p", { class: "note" }, note)));
  });
}

function runItem(run, toggle) {
  const box = el("input", { type: "checkbox", checked: true });
  box.addEventListener("change", () => {
    run.visible = box.checked;
    toggle(run);
  });
  return el("li", {}, el("label", {}, box, el("i", { class: `swatch ${run.colour}` }), el("span", {}, run.info.title)), el("div"));
}

/** Shows the ranks of the runs that are not over, by host. */
export function showRanks(place, state) {
  const running = state.runs.filter((run) => run.visible && run.info.ranks?.length > 0);
  if (running.length === 0) return replace(place, el("p", { class: "quiet" }, "No workers are running."));
  const hasGpus = running.some((run) => run.info.ranks.some((rank) => rank.gpu));
  const rows = running.flatMap((run) => {
    const { info } = run, elapsed = state.now() - info.updated;
    return [...info.ranks].sort((a, b) => a.host.localeCompare(b.host) || a.rank - b.rank).map((rank) => {
      const age = rank.seconds_since_heartbeat + Math.max(0, elapsed), isLate = age > SILENT;
      const notes = [rank.is_straggler ? "straggler" : null, isLate ? "silent" : null].filter(Boolean).join(", ");
      return el("tr", {}, el("td", {}, info.title), el("td", {}, rank.host), el("td", { class: "number" }, rank.rank),
        el("td", { class: "number" }, rank.pid), el("td", { class: "number" }, rank.step), el("td", {}, rank.phase),
        el("td", { class: "number" }, `${duration(age)} ago`), hasGpus ? el("td", {}, rank.gpu) : null, el("td", { class: notes ? "straggler" : null }, notes));
    });
  });
  const summary = running.map((run) => {
    const times = run.info.rank_times, hidden = run.info.rank_count - run.info.ranks.length;
    const range = times ? `: ${format(times.min)} to ${format(times.max)} s a step, median ${format(times.median)} s, slowest rank ${times.slowest}` : "";
    return `${run.info.title}${range}${hidden > 0 ? `; ${hidden} other ranks are not shown` : ""}`;
  });
  const heads = ["run", "host", "rank", "pid", "step", "phase", "last heartbeat", ...(hasGpus ? ["GPU"] : []), "note"];
  return table(place, "Ranks", summary.join("; "), heads, rows, [2, 3, 4, 6]);
}

/** Shows the wall-clock time of the visible runs by category. */
export function showGoodput(place, state) {
  const accounted = state.runs.filter((run) => run.visible && run.info.goodput?.length > 0);
  if (accounted.length === 0) return replace(place, el("p", { class: "quiet" }, "No time has been accounted for yet."));
  const rows = accounted.flatMap(({ info }) => {
    const total = sum(info.goodput);
    return info.goodput.map(([category, seconds]) => el("tr", {}, el("td", {}, info.title), el("td", {}, category.replaceAll("_", " ")),
      el("td", { class: "number" }, duration(seconds)), el("td", { class: "number" }, share(seconds, total))));
  });
  const summary = accounted.map(({ info }) => `${info.title}: ${goodput(info.goodput)}`).join("; ");
  return table(place, "Goodput", summary, ["run", "wall-clock time", "duration", "share"], rows, [2, 3]);
}

const sum = (categories) => categories.reduce((total, [, seconds]) => total + seconds, 0);
const share = (seconds, total) => `${(100 * seconds / total).toFixed(1)}%`;

function goodput(categories) {
  const total = sum(categories), productive = categories.find(([category]) => category === "productive_step");
  return `goodput ${share(productive?.[1] ?? 0, total)} of ${duration(total)}`;
}

/** Shows the marks of the visible runs, the newest steps first. */
export function showEvents(place, state) {
  const marks = state.runs.filter((run) => run.visible).flatMap((run) => run.marks.map((mark) => ({ run, ...mark })));
  if (marks.length === 0) return replace(place, el("p", { class: "quiet" }, "Nothing has happened yet."));
  marks.sort((a, b) => b.step - a.step);
  const rows = marks.map(({ run, kind, step, text }) => el("tr", {}, el("td", {}, run.info.title), el("td", { class: "number" }, step),
    el("td", {}, el("i", { class: `swatch mark-${kind}` }), ` ${KINDS[kind] ?? kind}`), el("td", { class: "text" }, text)));
  return table(place, "Events", "Checkpoints, restarts, rollbacks, skipped samples and growth", ["run", "step", "event", "cause"], rows, [1]);
}

function table(place, name, caption, heads, rows, numbers) {
  const head = heads.map((text, index) => el("th", { scope: "col", class: numbers.includes(index) ? "number" : null }, text));
  const content = el("table", {}, el("caption", {}, caption), el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows));
  const old = place.querySelector(".scroll");
  if (old) return replace(old, content);
  return place.replaceChildren(el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": name }, content));
}
