// The web page as the real program serves it: headers and caching, a streamed
// answer, stop, and the request on its way through the kitchen.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { after, before, test as named_test } from 'node:test';
import { SOURCE, open_browser, open_page } from './browser.mjs';

const BINARY = process.env.GALLEY_BINARY ?? `${SOURCE}build/release/bin/galley`;
// A tiny model with random weights: what it says means nothing, but it is quick.
const MODEL = `${SOURCE}tests/golden/g1-micro-text/checkpoint`;
const START_MS = 60_000;

const test = (name, body) => named_test(name, { timeout: 120_000 }, body);
const browser = await open_browser();
const home = mkdtempSync(`${tmpdir()}/galley-page-`);
let server;
let origin;

// Starts the program on a free port; its log says which.
async function start_server() {
  const environment = Object.fromEntries(
    Object.entries(process.env).filter(([name]) => !name.startsWith('GALLEY_')));
  server = spawn(BINARY, ['serve', '-m', MODEL, '--port', '0'],
    { cwd: home, env: { ...environment, HOME: home }, stdio: ['ignore', 'ignore', 'pipe'] });
  let log = '';
  const ended = new Promise((_, reject) => {
    server.on('exit', (code) => reject(new Error(`galley ended with ${code}:\n${log}`)));
  });
  ended.catch(() => {}); // after the tests it may
  const listening = new Promise((resolve) => {
    server.stderr.on('data', (chunk) => {
      log += chunk;
      const address = log.match(/event=listening address=(http:\/\/\S+)/);
      if (address) resolve(address[1]);
    });
  });
  const found = await Promise.race([listening, ended]);
  const late = Date.now() + START_MS;
  while ((await fetch(`${found}/ready`)).status !== 200) {
    if (Date.now() > late) throw new Error(`not ready:\n${log}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  return found;
}

before(async () => { origin = await start_server(); });
after(async () => {
  await browser.close();
  server.kill('SIGKILL');
  rmSync(home, { recursive: true });
});

async function send(page, text) {
  await page.fill('#prompt', text);
  await page.press('#prompt', 'Enter');
}

test('the page may be cached for ever, its HTML is asked for', async () => {
  const html = await fetch(origin);
  assert.equal(html.status, 200);
  assert.match(html.headers.get('content-security-policy'), /default-src 'none'.*require-trusted-types-for/);
  assert.equal(html.headers.get('cache-control'), 'no-cache');
  const same = await fetch(origin, { headers: { 'If-None-Match': html.headers.get('etag') } });
  assert.equal(same.status, 304);
  const script = (await html.text()).match(/src="([^"]+)"/)[1];
  const asset = await fetch(origin + script);
  assert.equal(asset.status, 200);
  assert.match(asset.headers.get('content-type'), /javascript/);
  assert.match(asset.headers.get('cache-control'), /immutable/);
  assert.equal((await fetch(`${origin}/page/0/page.js`)).status, 404);
});

test('an answer streams and is counted', async () => {
  const { page, faults, close } = await open_page(browser, origin);
  await page.goto(origin);
  await page.click('#settings > summary');
  await page.getByLabel('Most tokens').fill('40');
  await page.getByLabel('Temperature').fill('0');
  await send(page, 'Once upon a time there was a galley with a very small kitchen.');
  const meta = page.locator('.message.assistant .meta');
  await meta.filter({ hasText: /[1-9]\d* tokens · .*cache hit \d+ of [1-9]/ }).waitFor();
  assert.notEqual((await page.locator('.message.assistant').innerText()).trim(), '');
  assert.deepEqual(faults, []);
  await close();
});

// The answers of so small a model may end before they are looked at, so each of
// these is tried with one answer after the other until it was in time.
async function within_twenty_answers(page, what, attempt) {
  for (let turn = 0; turn < 20; ++turn) {
    await send(page, `Tell me everything, ${turn}`);
    const done = await attempt();
    await page.waitForSelector('#send:visible');
    if (done) return;
  }
  assert.fail(`${what}: not in twenty answers`);
}

test('a long answer is seen in the kitchen', async () => {
  const { page, faults, close } = await open_page(browser, origin);
  await page.goto(origin);
  await within_twenty_answers(page, 'a ticket seen', async () => {
    await page.locator('.message.assistant').last().waitFor();
    await page.click('#to-kitchen');
    const seen = await page.locator('.ticket[data-phase=decode]').waitFor({ timeout: 2000 })
      .then(() => true, () => false);
    await page.click('#to-chat');
    return seen;
  });
  assert.deepEqual(faults, []);
  await close();
});

test('a long answer can be stopped', async () => {
  const { page, faults, close } = await open_page(browser, origin);
  await page.goto(origin);
  await within_twenty_answers(page, 'an answer stopped', () =>
    // Looked at and pressed in one go: between two calls the answer could end.
    page.evaluate(() => {
      const stop = document.querySelector('#stop');
      const running = stop.checkVisibility();
      if (running) stop.click();
      return running;
    }));
  const meta = page.locator('.message.assistant .meta');
  await meta.last().filter({ hasText: 'stopped' }).waitFor();
  await page.click('#to-kitchen');
  await page.locator('#pulse').filter({ hasText: '0 running' }).waitFor();
  await page.locator('#served tr').first().waitFor();
  assert.equal(await page.locator('.ticket').count(), 0);
  assert.deepEqual(faults, []);
  await close();
});
