// Opens the page of `lambert watch` in headless Chromium, checks it and prints a report as JSON.
//
//   node tests/browser/page.mjs MODULES URL [--picture=WIDTHxHEIGHT:light|dark:FILE.png]...
//
// MODULES is a folder with playwright-core and axe-core in node_modules (tests/setup.sh). CHROMIUM names the browser.

import fs from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";

const [modules, url, ...options] = process.argv.slice(2);
const require = createRequire(path.join(path.resolve(modules), "index.js"));
const { chromium } = require("playwright-core");
const axe = fs.readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

const report = { console: [], violations: [], foreign: [], charts: [], tables: [], axe: {}, firstPaintMs: null };

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-dev-shm-usage"],
});
try {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, colorScheme: "light" });
  // For work on the page: files of this folder instead of those in the program.
  if (process.env.WATCH_ASSETS) {
    await context.route(/\.(js|css)$/, (route) => {
      const file = path.join(process.env.WATCH_ASSETS, path.basename(new URL(route.request().url()).pathname));
      return fs.existsSync(file) ? route.fulfill({ path: file }) : route.continue();
    });
  }
  const page = await context.newPage();
  await observe(page);
  await open(page);
  report.firstPaintMs = await page.evaluate(() => performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? null);
  report.charts = await page.evaluate(charts);
  report.tables = await tablesByKeyboard(page);
  report.cursor = await cursorByKeyboard(page);
  for (const theme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme: theme });
    report.axe[theme] = await accessibility(page);
  }
  report.axes = await everyAxis(page);
  report.runs = await page.evaluate(() => document.querySelector("#runs").innerText);
  report.ranks = await page.evaluate(ranks);
  report.title = await page.title();
  report.injected = await page.evaluate(() => document.querySelectorAll("body script, main img").length);
  report.address = page.url();
  for (const option of options) await picture(context, option);
} finally {
  await browser.close();
}
console.log(JSON.stringify(report));

async function observe(page) {
  page.on("console", (message) => { if (["error", "warning"].includes(message.type())) report.console.push(message.text()); });
  page.on("pageerror", (error) => report.console.push(String(error)));
  page.on("request", (request) => {
    const target = request.url();
    if (!target.startsWith("data:") && new URL(target).origin !== new URL(url).origin) report.foreign.push(target);
  });
  await page.exposeFunction("reportViolation", (text) => report.violations.push(text));
  page.addInitScript(() => document.addEventListener("securitypolicyviolation", (event) =>
    window.reportViolation(`${event.violatedDirective} ${event.blockedURI}`)));
}

/** Opens the page and waits until all runs have been read and charts are drawn. */
async function open(page) {
  await page.goto(url);
  const isDrawn = () => page.evaluate(() => Number(document.querySelector("#plot-loss")?.dataset.points ?? 0) > 0
    && !document.querySelector("#runs").textContent.includes("reading the run"));
  // Not waitForFunction, which evaluates a string in the page: the page's policy forbids that.
  for (const start = Date.now(); !(await isDrawn()); await page.waitForTimeout(100)) {
    if (Date.now() - start > 60_000) throw new Error("no chart was drawn within 60 s");
  }
  await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
}

/** Points and colored pixels of each chart. */
function charts() {
  return [...document.querySelectorAll(".plot")].map((plot) => {
    const canvas = plot.querySelector("canvas");
    const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    let colored = 0;
    for (let at = 0; at < pixels.length; at += 4) {
      const [red, green, blue, alpha] = pixels.subarray(at, at + 4);
      if (alpha > 100 && Math.max(red, green, blue) - Math.min(red, green, blue) > 60) colored += 1;
    }
    const readout = document.getElementById(plot.getAttribute("aria-describedby")).textContent;
    return { id: plot.id, points: Number(plot.dataset.points), colored, readout };
  });
}

/** Rows of the table of ranks: the shown text of each cell by the head of its column. */
function ranks() {
  const texts = (parent, selector) => [...parent.querySelectorAll(selector)].map((cell) => cell.checkVisibility() ? cell.innerText : null);
  const table = document.querySelector("#ranks"), heads = texts(table, "th");
  return [...table.querySelectorAll("tbody tr")].map((row) => Object.fromEntries(texts(row, "td").map((text, column) => [heads[column], text])));
}

/** Presses Tab through the whole page and opens each table with Enter. */
async function tablesByKeyboard(page) {
  const opened = [];
  await page.evaluate(() => document.activeElement?.blur());
  for (let presses = 0; presses < 120; presses += 1) {
    await page.keyboard.press("Tab");
    const button = await page.evaluate(() => document.activeElement?.getAttribute("aria-controls") ?? null);
    if (!button || opened.some((table) => table.id === button)) continue;
    await page.keyboard.press("Enter");
    opened.push(await page.evaluate((id) => {
      const table = document.querySelector(`#${id} table`);
      return {
        id, expanded: document.activeElement.getAttribute("aria-expanded"), visible: Boolean(table?.checkVisibility()),
        rows: table?.querySelectorAll("tbody tr").length ?? 0, heads: [...(table?.querySelectorAll("th") ?? [])].map((head) => head.textContent),
      };
    }, button));
  }
  return opened;
}

/** Text below the first chart before and after the cursor is moved to its start. */
async function cursorByKeyboard(page) {
  await page.focus("#plot-loss");
  const read = () => page.evaluate(() => document.querySelector("#readout-loss").textContent);
  const before = await read();
  await page.keyboard.press("Home");
  return { before, after: await read() };
}

async function accessibility(page) {
  await page.evaluate(axe);
  const found = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  const describe = (violation) => `${violation.id} (${violation.impact}): ${violation.nodes.map((node) => node.target.join(" ")).slice(0, 3).join("; ")}`;
  return found.violations.filter(({ impact }) => ["serious", "critical"].includes(impact)).map(describe);
}

/** Chooses each X axis; returns those that the charts could draw. */
async function everyAxis(page) {
  const drawn = [];
  for (const axis of await page.$$eval("#axis option:not([disabled])", (found) => found.map((option) => option.value))) {
    await page.selectOption("#axis", axis);
    const last = (await page.evaluate(charts)).filter((chart) => chart.points > 0 && chart.colored > 50);
    if (last.length > 0) drawn.push(axis);
  }
  await page.selectOption("#axis", "step");
  return drawn;
}

/** Writes a picture. */
async function picture(context, option) {
  const [, width, height, colorScheme, file] = option.match(/^--picture=(\d+)x(\d+):(\w+):(.+)$/);
  const page = await context.newPage();
  await page.setViewportSize({ width: Number(width), height: Number(height) });
  await page.emulateMedia({ colorScheme });
  await open(page);
  await page.screenshot({ path: file });
  await page.close();
}
