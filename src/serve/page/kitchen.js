// The kitchen view: asks the server what it does twice a second and shows it.
// Nothing here knows a text: the snapshot has counts and times only.

import { page_bar, sparkline, timeline } from './charts.js';
import { by_id, element, refill, set_text } from './element.js';
import { KitchenHistory } from './kitchen_history.js';
import { count, duration, money, percent, speed } from './numbers.js';
import { get_json } from './server.js';

const PRICES = 'galley.prices';
const DEFAULT_PRICES = { currency: '$', miss: '0.15', hit: '0.003' };
const SHOWN_MS = 500; // between snapshots while the kitchen is open
const GLANCE_MS = 3000; // while only the line at the top of the page shows them
const RAIL_MAX = 24;
const ROWS_MAX = 20;
const SERVED_MAX = 12;
const SPEED_MS = 5000; // what "now" means for a speed

export class Kitchen {
  constructor() {
    this.history = new KitchenHistory();
    this.cards = new Map(); // ticket id -> its parts on the rail
    this.visible = false;
    this.paused = false;
    this.timer = null;
    this.prices = this.read_prices();
    this.figures = new Map();
    const form = by_id('prices');
    for (const [name, value] of Object.entries(this.prices)) form.elements[name].value = value;
    form.addEventListener('submit', (event) => event.preventDefault());
    form.addEventListener('input', (event) => {
      this.prices[event.target.name] = event.target.value;
      localStorage.setItem(PRICES, JSON.stringify(this.prices));
      if (this.state) this.show_figures(this.state);
    });
    by_id('kitchen-pause').addEventListener('click', (event) => {
      this.paused = !this.paused;
      event.currentTarget.setAttribute('aria-pressed', String(this.paused));
      this.plan(0);
    });
    document.addEventListener('visibilitychange', () => this.plan(0));
  }

  read_prices() {
    try {
      return { ...DEFAULT_PRICES, ...JSON.parse(localStorage.getItem(PRICES) ?? '{}') };
    } catch {
      return { ...DEFAULT_PRICES };
    }
  }

  set shown(visible) {
    this.visible = visible;
    this.plan(0);
  }

  // A hidden or paused view asks nothing; one question is on its way at most.
  plan(ms) {
    clearTimeout(this.timer);
    if (!document.hidden && !(this.visible && this.paused)) this.timer = setTimeout(() => this.ask(), ms);
  }

  async ask() {
    if (this.asking) return;
    this.asking = true;
    let wait = this.visible ? SHOWN_MS : GLANCE_MS;
    try {
      this.show(await get_json('/kitchen/state'));
    } catch (error) {
      this.refuse(error);
      // Refused is refused until another view or key; a server that is away may come back.
      wait = error.status >= 400 && error.status < 500 ? null : GLANCE_MS;
    }
    this.asking = false;
    if (wait !== null) this.plan(wait);
  }

  refuse(error) {
    const text = error.status === 401 || error.status === 403
      ? 'The kitchen is open to keys with the admin scope. Give one with "API key" above.'
      : error.message;
    set_text(by_id('kitchen-notice'), text);
    by_id('kitchen-notice').hidden = false;
    by_id('kitchen-body').hidden = true;
    set_text(by_id('kitchen-state'), '');
    set_text(by_id('pulse'), '');
  }

  show(state) {
    this.state = state;
    this.history.add(state);
    const tokens = this.history.per_second('output_tokens', SPEED_MS);
    const pace = Number.isFinite(tokens) ? ` · ${speed(tokens)} tokens/s` : '';
    set_text(by_id('pulse'), `${count(state.running)} running · ${count(state.waiting)} waiting${pace}`);
    if (!this.visible) return;
    by_id('kitchen-notice').hidden = true;
    by_id('kitchen-body').hidden = false;
    set_text(by_id('kitchen-state'), `${state.model} · ${state.state} for ${duration(state.now_ms)}`);
    this.show_figures(state);
    this.show_rail(state);
    by_id('timeline').replaceChildren(timeline(state.tickets, state.now_ms, ROWS_MAX));
    refill(by_id('tiers'), JSON.stringify(state.tiers), () => state.tiers.map((tier) => this.tier(tier, state.page_tokens)));
    const misses = Object.entries(state.totals.misses).filter(([reason, times]) => times > 0 && reason !== 'none');
    set_text(by_id('misses'), misses.length === 0 ? '' : `Prompts that could have hit further, by what stopped them: ${
      misses.map(([reason, times]) => `${reason.replaceAll('_', ' ')} ${count(times)}`).join(', ')}.`);
    this.show_served(state.tickets.filter((ticket) => ticket.finish !== null));
  }

  // ---- figures

  figure(name, value, note, series) {
    let parts = this.figures.get(name);
    if (!parts) {
      parts = { value: element('dd', { class: 'value' }), note: element('dd', { class: 'soft small' }), line: element('dd', { class: 'line' }) };
      by_id('figures').append(element('div', { class: 'figure' }, element('dt', {}, name), parts.value, parts.line, parts.note));
      this.figures.set(name, parts);
    }
    set_text(parts.value, value);
    set_text(parts.note, note);
    if (series) parts.line.replaceChildren(sparkline(series, this.state.now_ms, `${name} over the last minute`));
  }

  show_figures(state) {
    const { totals } = state;
    const { history } = this;
    const rate = (name) => (a, b) => ((b[name] - a[name]) * 1000) / (b.now_ms - a.now_ms);
    this.figure('Tokens out', `${speed(history.per_second('output_tokens', SPEED_MS))} /s`,
      `${count(totals.output_tokens)} since the start`, history.series(rate('output_tokens')));
    this.figure('Prompt rows', `${speed(history.per_second('prefill_rows', SPEED_MS))} /s`,
      `${count(totals.replay_rows)} rows replayed`, history.series(rate('prefill_rows')));
    const step_us = history.ratio('step_us', 'steps', SPEED_MS);
    this.figure('Step', duration((Number.isFinite(step_us) ? step_us : state.last_step_us) / 1000),
      `${count(totals.steps)} steps, ${count(totals.wasted_rows)} rows wasted`,
      history.series((a, b) => (b.step_us - a.step_us) / (b.steps - a.steps)));
    const minute = history.grown('prompt_tokens').by;
    this.figure('Cache hits', percent(totals.cached_tokens, totals.prompt_tokens),
      minute > 0 ? `${percent(history.grown('cached_tokens').by, minute)} in the last minute` : 'no prompt in the last minute');
    const saved = (totals.cached_tokens / 1e6) * (Number(this.prices.miss) - Number(this.prices.hit));
    this.figure('Saved by hits', money(Math.max(0, saved), this.prices.currency),
      `${count(totals.cached_tokens)} prompt tokens not computed`);
    this.figure('Seats', `${count(state.running)} of ${count(state.running_max)}`,
      `${count(state.waiting)} waiting, room for ${count(state.waiting_max)}`);
    if (totals.drafted_tokens > 0) {
      this.figure('Drafts kept', percent(totals.accepted_tokens, totals.drafted_tokens),
        `${count(totals.accepted_tokens)} of ${count(totals.drafted_tokens)}`);
    }
  }

  // ---- tickets

  show_rail(state) {
    const open = state.tickets.filter((ticket) => ticket.finish === null);
    const shown = open.slice(0, RAIL_MAX);
    const rail = by_id('rail');
    const kept = new Set(shown.map(({ id }) => id));
    for (const [id, card] of this.cards) {
      if (kept.has(id)) continue;
      card.node.remove();
      this.cards.delete(id);
    }
    shown.forEach((ticket, index) => {
      const card = this.card(ticket, state.now_ms);
      if (rail.children[index] !== card.node) rail.insertBefore(card.node, rail.children[index] ?? null);
    });
    const more = open.length - shown.length;
    set_text(by_id('rail-empty'), more > 0 ? `and ${count(more)} more` : 'No orders in.');
    by_id('rail-empty').hidden = open.length > 0 && more === 0;
  }

  card(ticket, now) {
    let card = this.cards.get(ticket.id);
    if (!card) {
      card = {
        phase: element('p', { class: 'ticket-phase' }),
        prompt: element('p'), hit: element('p'), replay: element('p'), out: element('p'), age: element('p', { class: 'soft' }),
        bar: element('progress', { 'aria-label': 'Tokens of the most asked for', max: '1', value: '0' }),
      };
      card.node = element('li', { class: 'ticket' },
        element('h3', { class: 'ticket-id' }, ticket.id), card.phase, card.prompt, card.hit, card.replay, card.out, card.bar, card.age);
      this.cards.set(ticket.id, card);
    }
    const span = ticket.spans.at(-1);
    card.node.dataset.phase = span.phase;
    set_text(card.phase, span.phase);
    set_text(card.prompt, `prompt ${count(ticket.prompt_tokens)}`);
    set_text(card.hit, ticket.cached_tokens > 0 ? `hit ${percent(ticket.cached_tokens, ticket.prompt_tokens)}` : 'no hit');
    set_text(card.replay, `replay ${count(ticket.replayed_tokens)}`);
    set_text(card.out, `out ${count(ticket.output_tokens)} / ${count(ticket.output_tokens_max)}`);
    card.bar.value = ticket.output_tokens / Math.max(1, ticket.output_tokens_max);
    set_text(card.age, `${duration(now - ticket.spans[0].from_ms)}${ticket.priority === 'interactive' ? '' : `, ${ticket.priority}`}`);
    return card;
  }

  show_served(closed) {
    const time_in = (ticket, ...phases) => {
      const spans = ticket.spans.filter((span) => phases.includes(span.phase));
      return spans.length === 0 ? '–' : duration(spans.reduce((sum, span) => sum + (span.to_ms - span.from_ms), 0));
    };
    const rows = closed.slice(0, SERVED_MAX);
    refill(by_id('served'), rows.map(({ id }) => id).join(), () => rows.map((ticket) => element('tr', {},
      element('th', { scope: 'row' }, ticket.id),
      ...[
        time_in(ticket, 'waiting', 'spilled'), time_in(ticket, 'prefill', 'replay'), time_in(ticket, 'decode'),
        count(ticket.prompt_tokens), percent(ticket.cached_tokens, ticket.prompt_tokens),
        count(ticket.output_tokens), ticket.finish,
      ].map((text) => element('td', {}, text)))));
  }

  // ---- pages

  tier(tier, page_tokens) {
    const kept = tier.cached.reduce((sum, { pages }) => sum + pages, 0);
    const band_name = ({ under_s: s }, index) => {
      if (s === null) return index === 0 ? 'any age' : 'older';
      return `under ${s < 60 ? `${s} s` : s < 3600 ? `${s / 60} min` : `${s / 3600} h`}`;
    };
    const bands = tier.cached.map((band, index) => ({
      pages: band.pages, kind: `kept age-${Math.min(index, 4)}`, name: `kept, ${band_name(band, index)}`,
    }));
    const parts = [{ pages: tier.held_pages, kind: 'held', name: 'in use' }, ...bands,
      { pages: tier.free_pages, kind: 'free', name: 'free' }];
    const summary = `${tier.name}: ${count(tier.page_count)} pages of ${count(page_tokens)} tokens, `
      + `${count(tier.held_pages)} in use, ${count(kept)} kept for reuse, ${count(tier.free_pages)} free`;
    return element('div', { class: 'tier' },
      element('p', {}, summary),
      page_bar(parts, tier.page_count, summary),
      element('ul', { class: 'legend' }, ...parts.map(({ pages, kind, name }) =>
        element('li', {}, element('span', { class: `swatch ${kind}` }), `${name} ${count(pages)}`))));
  }
}
