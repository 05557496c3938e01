// One message on the page: text, folded reasoning, tool calls, and what it cost.

import { element, set_text } from './element.js';
import { count, duration, percent, speed } from './numbers.js';
import { TextView } from './text_view.js';

const NAMES = { user: 'You', assistant: 'Model', tool: 'Tool result' };

// Why no more of a prompt was found in the cache.
const MISSES = {
  off: 'the cache is off',
  too_short: 'too short',
  unknown: 'nothing like it was there',
  token_differs: 'then it differs',
  evicted: 'the rest had to make room',
  expired: 'the rest was kept for too long unused',
  other_namespace: 'cached under another namespace',
};

// "212 tokens · 48.1 tokens/s · first after 80 ms · cache hit 96 of 120 (80 %)"
export function numbers_text(numbers) {
  if (!numbers) return '';
  const parts = [];
  if (numbers.output_tokens !== undefined) {
    parts.push(`${count(numbers.output_tokens)} tokens`);
    if (numbers.reasoning_tokens) parts.push(`${count(numbers.reasoning_tokens)} of them reasoning`);
  } else if (numbers.pieces) {
    parts.push(`about ${count(numbers.pieces)} tokens`); // the server counts at the end
  }
  if (numbers.tokens_per_s) parts.push(`${speed(numbers.tokens_per_s)} tokens/s`);
  if (numbers.first_ms !== undefined) parts.push(`first after ${duration(numbers.first_ms)}`);
  if (numbers.prompt_tokens !== undefined) {
    const { prompt_tokens: prompt, cached_tokens: cached } = numbers;
    const why = MISSES[numbers.miss];
    parts.push(`cache hit ${count(cached)} of ${count(prompt)} (${percent(cached, prompt)}${why ? `: ${why}` : ''})`);
    if (numbers.replayed_tokens) parts.push(`${count(numbers.replayed_tokens)} replayed`);
  }
  if (numbers.finish && numbers.finish !== 'stop') {
    parts.push({ length: 'cut at the most tokens', tool_calls: 'waits for its tools',
      stopped: 'stopped' }[numbers.finish] ?? numbers.finish);
  }
  return parts.join(' · ');
}

function pretty(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json; // still streaming, or not JSON: as it is
  }
}

export class MessageView {
  constructor(message, { on_copy, on_result } = {}) {
    this.message = message;
    this.on_result = on_result;
    this.calls = [];
    this.thoughts = element('div', { class: 'thoughts' });
    this.summary = element('summary', {}, 'Reasoning');
    this.reasoning = element('details', { class: 'reasoning' }, this.summary, this.thoughts);
    this.body = element('div', { class: 'body' });
    this.tools = element('div', { class: 'calls' });
    this.meta = element('p', { class: 'meta' });
    this.copy = element('button', { type: 'button', class: 'quiet small', onclick: on_copy }, 'Copy');
    this.foot = element('footer', { class: 'foot' }, this.meta, this.copy);
    this.node = element('li', { class: `message ${message.role}` },
      element('article', {},
        element('h2', { class: 'who' }, NAMES[message.role] ?? message.role),
        this.reasoning, this.body, this.tools, this.foot));
    this.thought_view = new TextView(this.thoughts);
    this.body_view = new TextView(this.body);
    this.update();
  }

  update() {
    const { content, reasoning, tool_calls: calls = [], numbers } = this.message;
    this.reasoning.hidden = !reasoning;
    this.thought_view.show(reasoning ?? '');
    this.body_view.show(content ?? '');
    calls.forEach((call, index) => this.show_call(call, index));
    set_text(this.meta, numbers_text(numbers));
    this.foot.hidden = this.message.role !== 'assistant' || (!content && !numbers);
    this.copy.hidden = !content;
  }

  set busy(busy) {
    this.node.classList.toggle('busy', busy);
    this.node.setAttribute('aria-busy', String(busy));
    set_text(this.summary, busy ? 'Reasoning…' : 'Reasoning');
    // An answer that is nothing else is not hidden.
    const { content, reasoning, tool_calls: calls = [] } = this.message;
    if (!busy && reasoning && !content && calls.length === 0) this.reasoning.open = true;
  }

  show_call(call, index) {
    if (!this.calls[index]) {
      const name = element('span', { class: 'call-name' });
      const text = element('code');
      const node = element('section', { class: 'call', 'aria-label': 'Tool call' },
        element('p', {}, 'calls ', name), element('pre', { tabindex: '0', 'aria-label': 'Arguments' }, text));
      this.tools.append(node);
      this.calls[index] = { node, name, text };
    }
    const { name, text } = this.calls[index];
    set_text(name, call.name ?? '');
    set_text(text, pretty(call.arguments ?? ''));
  }

  // A form for each call, for the reader to say what its tool would have.
  ask_results() {
    const calls = this.message.tool_calls ?? [];
    if (calls.length === 0 || this.results) return;
    const areas = calls.map((call) => {
      const area = element('textarea', { rows: '2', required: true, spellcheck: 'false' });
      this.results = true;
      return { call, area, label: element('label', {}, `Result of ${call.name}`, area) };
    });
    const form = element('form', { class: 'results' }, ...areas.map(({ label }) => label),
      element('button', { type: 'submit' }, 'Send results'));
    form.addEventListener('submit', (event) => {
      event.preventDefault();
      const results = areas.map(({ call, area }) => ({ role: 'tool', tool_call_id: call.id, content: area.value }));
      form.remove();
      this.on_result(results);
    });
    this.tools.append(form);
  }
}
