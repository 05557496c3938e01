// Debian's Chromium, driven by playwright-core. A machine without either says
// so in one line and the test counts as skipped (exit code 77), not as passed.

import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import { fileURLToPath } from 'node:url';

export const SOURCE = fileURLToPath(new URL('../../../', import.meta.url));
const CHROMIUM = process.env.GALLEY_CHROMIUM ?? '/usr/bin/chromium';
const PACKAGES = process.env.GALLEY_NPM ?? `${SOURCE}build/npm/`;

function skip(reason) {
  console.log(`skipped: ${reason}`);
  process.exit(77);
}

export async function open_browser() {
  if (!existsSync(CHROMIUM)) skip(`no ${CHROMIUM}: ./dev setup browser`);
  if (!existsSync(`${PACKAGES}node_modules/playwright-core`)) skip('no playwright-core: ./dev setup');
  const { chromium } = createRequire(PACKAGES)('playwright-core');
  // No sandbox of its own: tests run as root in containers. The page is ours alone.
  return chromium.launch({ executablePath: CHROMIUM, args: ['--no-sandbox'] });
}

// A page that remembers everything that should not happen: errors on the console, uncaught
// exceptions, requests to anybody but `origin`.
export async function open_page(browser, origin, options = {}) {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  const faults = [];
  page.on('console', (message) => {
    if (message.type() === 'error' || message.type() === 'warning') faults.push(message.text());
  });
  page.on('pageerror', (error) => faults.push(error.message));
  page.on('request', (request) => {
    if (new URL(request.url()).origin !== origin) faults.push(`asks ${request.url()}`);
  });
  page.setDefaultTimeout(30_000);
  return { page, faults, close: () => context.close() };
}
