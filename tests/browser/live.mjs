// Opens the page of `lambert watch` for a run that trains, and waits until the page shows a restart without being loaded
// again. Prints `open` when the page shows steps, then a report as JSON.
//
//   node tests/browser/live.mjs MODULES URL
//
// MODULES is a folder with playwright-core in node_modules (tests/setup.sh). CHROMIUM names the browser.

import { createRequire } from "node:module";
import path from "node:path";

const [modules, url] = process.argv.slice(2);
const { chromium } = createRequire(path.join(path.resolve(modules), "index.js"))("playwright-core");
const LIMIT = 120_000;

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-dev-shm-usage"],
});
try {
  const page = await browser.newPage();
  // Sizes of the answers as they are sent, that is, compressed.
  const sizes = [];
  page.on("requestfinished", async (request) => {
    if (request.url().includes("/data")) sizes.push((await request.sizes()).responseBodySize);
  });
  await page.goto(url);
  // The content security policy forbids the `eval` that waitForFunction would use.
  const wait = async (holds) => {
    for (const start = Date.now(); !(await holds());) {
      if (Date.now() - start > LIMIT) throw new Error(`timeout; the page shows ${await text("body")}`);
      await page.waitForTimeout(100);
    }
  };
  const text = (selector) => page.evaluate((selector) => document.querySelector(selector).innerText, selector);
  const step = async () => Number((await text("#runs")).match(/step (\d+) of/)?.[1] ?? 0);
  await wait(async () => (await step()) > 0);
  await page.evaluate(() => { window.isTheSamePage = true; });
  const first = await step();
  console.log("open");
  await wait(async () => /attempt 2, 1 restart/.test(await text("#runs")));
  await wait(async () => /restart[\s\S]*killed by SIGKILL/.test(await text("#events")));
  await wait(async () => (await step()) > first);
  const goodput = await text("#goodput");
  const rankCount = () => page.evaluate(() => document.querySelectorAll("#ranks tbody tr").length);
  // Both ranks of the second attempt have reported.
  await wait(async () => (await rankCount()) === 2);
  const ranks = await rankCount();
  const isTheSamePage = await page.evaluate(() => window.isTheSamePage === true);
  console.log(JSON.stringify({ first, last: await step(), goodput, ranks, isTheSamePage, sizes }));
} finally {
  await browser.close();
}
