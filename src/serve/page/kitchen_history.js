// Rates from the totals that the server counts since its start: each snapshot
// against an earlier one. A pure ring of the last minute of snapshots.

const KEPT_MS = 60_000;

export class KitchenHistory {
  constructor() {
    this.samples = []; // oldest first
  }

  add(state) {
    const last = this.samples.at(-1);
    if (last && state.now_ms < last.now_ms) this.samples = []; // the server started again
    if (last && state.now_ms === last.now_ms) return;
    this.samples.push({ now_ms: state.now_ms, ...state.totals });
    while (this.samples.length > 2 && state.now_ms - this.samples[0].now_ms > KEPT_MS) this.samples.shift();
  }

  // By how much totals[name] grew over the last `ms`, and in how long really.
  grown(name, ms = KEPT_MS) {
    const last = this.samples.at(-1);
    if (!last) return { by: 0, ms: 0 };
    const first = this.samples.find((sample) => last.now_ms - sample.now_ms <= ms) ?? last;
    return { by: last[name] - first[name], ms: last.now_ms - first.now_ms };
  }

  per_second(name, ms) {
    const { by, ms: real } = this.grown(name, ms);
    return real > 0 ? (by * 1000) / real : NaN;
  }

  // Growth of `over` for each one that `under` grew: between neighbours, over the last `ms`.
  ratio(over, under, ms) {
    const below = this.grown(under, ms).by;
    return below > 0 ? this.grown(over, ms).by / below : NaN;
  }

  // One value for each pair of neighbours: value(earlier, later).
  series(value) {
    return this.samples.slice(1).map((later, index) => ({
      now_ms: later.now_ms,
      value: value(this.samples[index], later),
    }));
  }
}
