// Numbers as people read them. Pure functions.

const whole = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });

export const count = (value) => whole.format(value);

export function percent(part, all) {
  if (!(all > 0)) return '–';
  const share = (100 * part) / all;
  return `${share >= 99.95 || share === 0 ? share.toFixed(0) : share.toFixed(1)} %`;
}

export function speed(value) {
  if (!Number.isFinite(value)) return '–';
  return value >= 100 ? count(value) : value.toFixed(1);
}

export function duration(ms) {
  if (!Number.isFinite(ms)) return '–';
  if (ms === 0) return '0 ms';
  if (ms < 1) return `${Math.max(0, ms * 1000).toFixed(0)} µs`;
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${ms.toFixed(0)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  return `${Math.floor(ms / 60_000)} min ${Math.floor((ms % 60_000) / 1000)} s`;
}

// Small sums keep two digits that say something.
export function money(value, currency) {
  const digits = value >= 1 || value === 0 ? 2 : Math.min(8, 1 - Math.floor(Math.log10(value)));
  return `${currency}${value.toFixed(digits)}`;
}
