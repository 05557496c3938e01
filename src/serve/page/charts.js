// Drawings of the kitchen: the timeline of requests, a line over the last minute,
// a bar of pages. Each carries its summary as a label, since its content is
// told again in words beside it.

import { drawing } from './element.js';

const MINUTE = 60_000;
const WINDOWS = [8_000, 20_000, 40_000, MINUTE]; // what the timeline may show
const ROW = 15;

const percent_of = (ms, now, span = MINUTE) => Math.max(0, 100 * (1 - (now - ms) / span));

// One row a request, oldest at the top; x is time, the right edge is now, the left edge as long
// ago as what is shown needs.
export function timeline(tickets, now, rows_max) {
  const recent = tickets
    .filter((ticket) => (ticket.spans.at(-1)?.to_ms ?? now) > now - MINUTE)
    .sort((a, b) => a.spans[0].from_ms - b.spans[0].from_ms)
    .slice(-rows_max);
  const oldest = recent[0]?.spans[0].from_ms ?? now - MINUTE;
  const span_ms = WINDOWS.find((ms) => oldest >= now - ms) ?? MINUTE;
  const height = Math.max(3, recent.length) * ROW + 18;
  const lines = [0, 1, 2, 3].map((quarter) => {
    const x = `${100 - 25 * quarter}%`;
    return drawing('g', {},
      drawing('line', { x1: x, x2: x, y1: 0, y2: height - 16, class: 'grid' }),
      drawing('text', { x, y: height - 4, class: 'tick', 'text-anchor': quarter === 0 ? 'end' : 'middle' },
        quarter === 0 ? 'now' : `${(quarter * span_ms) / 4000} s ago`));
  });
  const bars = recent.flatMap((ticket, row) => ticket.spans
    .filter((span) => (span.to_ms ?? now) > now - span_ms)
    .map((span) => {
      const from = percent_of(span.from_ms, now, span_ms);
      const to = percent_of(span.to_ms ?? now, now, span_ms);
      const thin = span.phase === 'waiting' || span.phase === 'spilled';
      return drawing('rect', {
        x: `${from.toFixed(3)}%`, width: `${Math.max(0.15, to - from).toFixed(3)}%`,
        y: row * ROW + (thin ? 6 : 3), height: thin ? 3 : 9, rx: thin ? 0 : 1.5,
        class: `phase ${span.phase}`,
      });
    }));
  return drawing('svg', {
    class: 'chart', width: '100%', height, role: 'img',
    'aria-label': `Timeline of ${recent.length} requests; the tables say the same in words.`,
  }, ...lines, ...bars);
}

// A line over the last minute. The top of the drawing is the largest value.
export function sparkline(series, now, label) {
  const known = series.filter(({ value, now_ms }) => Number.isFinite(value) && now_ms > now - MINUTE);
  const top = Math.max(1e-9, ...known.map(({ value }) => value));
  const points = known.map(({ value, now_ms }) =>
    `${percent_of(now_ms, now).toFixed(2)},${(26 - (24 * value) / top).toFixed(2)}`);
  return drawing('svg', {
    class: 'spark', viewBox: '0 0 100 28', preserveAspectRatio: 'none', role: 'img', 'aria-label': label,
  }, drawing('polyline', { points: points.join(' '), fill: 'none', 'vector-effect': 'non-scaling-stroke' }));
}

// parts: [{pages, kind}], of `all` pages.
export function page_bar(parts, all, label) {
  let at = 0;
  const rects = parts.filter(({ pages }) => pages > 0).map(({ pages, kind }) => {
    const width = (100 * pages) / Math.max(1, all);
    const rect = drawing('rect', { x: `${at.toFixed(3)}%`, width: `${width.toFixed(3)}%`, y: 0, height: 22, class: kind });
    at += width;
    return rect;
  });
  return drawing('svg', { class: 'page-bar', width: '100%', height: 22, role: 'img', 'aria-label': label }, ...rects);
}
