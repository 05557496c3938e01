// Stands in for `galley serve` where a test needs to say what the model answers
// and when: the page from the source tree under the program's own policy, and
// answers that a test hands out piece by piece.

import { existsSync, readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { basename, extname } from 'node:path';
import { SOURCE } from './browser.mjs';

const PAGE = `${SOURCE}src/serve/page/`;
const TURN_MS = 20_000;
const TYPES = { '.css': 'text/css', '.js': 'text/javascript', '.svg': 'image/svg+xml' };

// The policy that the program sends, from its own header file.
function policy() {
  const header = readFileSync(`${SOURCE}src/serve/page_asset.h`, 'utf8');
  const [, literals] = header.match(/"Content-Security-Policy",\s*((?:"[^"]*"\s*)+)/);
  return literals.match(/"[^"]*"/g).map((literal) => literal.slice(1, -1)).join('');
}

// One request to /v1/chat/completions, answered by the test.
class Turn {
  constructor(body, response) {
    this.body = body;
    this.response = response;
    this.left = new Promise((resolve) => response.on('close', resolve)); // ended or cut
    response.writeHead(200, { 'Content-Type': 'text/event-stream' });
    this.delta({ role: 'assistant', content: '' });
    response.write(': a comment\n\n');
  }

  event(event) {
    this.response.write(`data: ${JSON.stringify(event)}\n\n`);
  }

  delta(delta) {
    this.event({ choices: [{ index: 0, delta }] });
  }

  say(text) {
    this.delta({ content: text });
  }

  finish(reason = 'stop', usage = {}) {
    this.event({ choices: [{ index: 0, delta: {}, finish_reason: reason }] });
    this.event({ choices: [], usage: { prompt_tokens: 0, completion_tokens: 0, ...usage } });
    this.response.end('data: [DONE]\n\n');
  }
}

export class CannedServer {
  constructor() {
    this.kitchen = null; // what /kitchen/state answers; null: 404
    this.key = ''; // wanted of every API request, if set
    this.admin_key = ''; // wanted of the kitchen, if set
    this.refusal = null; // {status, message} of the next chat request
    this.turns = [];
    this.waiting = [];
    this.server = createServer((request, response) => this.answer(request, response));
  }

  async listen() {
    await new Promise((resolve) => this.server.listen(0, '127.0.0.1', resolve));
    this.origin = `http://127.0.0.1:${this.server.address().port}`;
    return this;
  }

  close() {
    this.server.closeAllConnections();
    this.server.close();
  }

  // The next chat request, now or when it comes.
  next_turn() {
    if (this.turns.length > 0) return Promise.resolve(this.turns.shift());
    return new Promise((resolve, reject) => {
      const give_up = setTimeout(() => reject(new Error('the page asked for no answer')), TURN_MS);
      this.waiting.push((turn) => {
        clearTimeout(give_up);
        resolve(turn);
      });
    });
  }

  answer(request, response) {
    const path = new URL(request.url, 'http://here').pathname;
    const send = (status, type, body) => {
      response.writeHead(status, { 'Content-Type': type, 'Content-Security-Policy': policy() });
      response.end(body);
    };
    const json = (status, value) => send(status, 'application/json', JSON.stringify(value));
    const refuse = (status, message) => json(status, { error: { message } });

    if (path === '/') {
      const html = readFileSync(`${PAGE}index.html`, 'utf8').replaceAll('{{folder}}', '/page/0');
      return send(200, 'text/html; charset=utf-8', html);
    }
    if (path.startsWith('/page/0/')) {
      const file = PAGE + basename(path);
      if (!existsSync(file)) return send(404, 'text/plain', '');
      return send(200, TYPES[extname(file)], readFileSync(file));
    }
    const key = request.headers.authorization?.replace('Bearer ', '') ?? '';
    if (this.key && key !== this.key && key !== this.admin_key) return refuse(401, 'No such key.');
    if (path === '/v1/models') return json(200, { data: [{ id: 'nano' }] });
    if (path === '/kitchen/state') {
      if (this.admin_key && key !== this.admin_key) return refuse(403, 'Not with this key.');
      return this.kitchen ? json(200, this.kitchen) : refuse(404, 'No kitchen.');
    }
    if (path === '/v1/chat/completions') return this.take_turn(request, response, refuse);
    return refuse(404, 'No such path.');
  }

  take_turn(request, response, refuse) {
    let text = '';
    request.on('data', (chunk) => { text += chunk; });
    request.on('end', () => {
      if (this.refusal) {
        const { status, message } = this.refusal;
        this.refusal = null;
        return refuse(status, message);
      }
      const turn = new Turn(JSON.parse(text), response);
      if (this.waiting.length > 0) this.waiting.shift()(turn);
      else this.turns.push(turn);
    });
  }
}

// A kitchen with one request in each phase and one that left.
export function busy_kitchen() {
  const ticket = (id, spans, more = {}) => ({
    id, priority: 'interactive', prompt_tokens: 400, cached_tokens: 0, replayed_tokens: 0,
    output_tokens: 0, output_tokens_max: 200, finish: null,
    spans: spans.map(([phase, from_ms, to_ms = null]) => ({ phase, from_ms, to_ms })), ...more,
  });
  return {
    model: 'nano', state: 'running', now_ms: 100_000, running: 3, waiting: 1, running_max: 32,
    waiting_max: 1024, page_tokens: 16, last_step_us: 5000,
    totals: {
      steps: 1000, step_us: 5_000_000, prefill_rows: 30_000, replay_rows: 640, decode_rows: 9000,
      prompt_tokens: 40_000, cached_tokens: 10_000, replayed_tokens: 640, output_tokens: 9000,
      drafted_tokens: 0, accepted_tokens: 0, finished: { stop: 20 }, misses: { too_short: 3, evicted: 0 },
    },
    tiers: [{
      name: 'device', page_count: 512, free_pages: 300, held_pages: 112,
      cached: [{ under_s: 10, pages: 60 }, { under_s: null, pages: 40 }],
    }],
    tickets: [
      ticket('req-decode', [['waiting', 90_000, 91_000], ['replay', 91_000, 91_500],
        ['prefill', 91_500, 93_000], ['decode', 93_000]], { cached_tokens: 300, output_tokens: 50 }),
      ticket('req-prefill', [['waiting', 97_000, 97_500], ['prefill', 97_500]]),
      ticket('req-replay', [['waiting', 98_000, 99_000], ['replay', 99_000]], { cached_tokens: 200 }),
      ticket('req-waiting', [['waiting', 99_500]]),
      ticket('req-gone', [['waiting', 60_000, 61_000], ['prefill', 61_000, 63_000], ['decode', 63_000, 70_000]],
        { finish: 'stop', output_tokens: 123 }),
    ],
  };
}
