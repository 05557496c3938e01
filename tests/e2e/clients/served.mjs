// A running `galley serve` for the tests with other people's clients, and those clients.
// Exit code 77 means skipped: the npm packages are not there.

import { spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const source = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../../..');
const modules = path.join(source, 'build/npm/node_modules');

export function client_package(name) {
  if (!existsSync(path.join(modules, name))) {
    console.log(`skipped: no npm package ${name}: ./dev setup`);
    process.exit(77);
  }
  return createRequire(path.join(modules, 'x.js'))(name);
}

export async function start_server(...more) {
  const binary = process.env.GALLEY_BINARY ?? path.join(source, 'build/release/bin/galley');
  const child = spawn(binary, ['serve', '-m', path.join(source, 'models/nano'), '--port', '0',
    '--context', '2048', '--drain-grace', '0', '--keep-alive', '0.2', ...more],
  { stdio: ['ignore', 'ignore', 'pipe'] });
  process.on('exit', () => child.kill('SIGKILL'));
  let log = '';
  const ended = new Promise((resolve) => child.on('exit', resolve));
  const ready = new Promise((resolve, reject) => {
    child.stderr.on('data', (bytes) => {
      log += bytes;
      if (log.includes('state=ready')) resolve();
    });
    ended.then(() => reject(new Error(`galley serve ended:\n${log}`)));
  });
  await ready;
  return {
    url: /address=(http:\S+) /.exec(log)[1],
    log: () => log,
    async stop() {
      child.kill('SIGTERM');
      return ended;
    },
  };
}

export async function eventually(condition, what) {
  for (let i = 0; i < 400; ++i) {
    if (condition()) return;
    await new Promise((resolve) => setTimeout(resolve, 25));
  }
  throw new Error(`never came: ${what}`);
}
