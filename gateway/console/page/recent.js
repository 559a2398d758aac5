// What the decisions of the last minutes add up to, second by second. No element of the page is touched here.

import { quantile } from "./format.js";

export const SPAN = 300; // Seconds kept.
export const WINDOW = 60; // Seconds that the tiles speak of.
const SAMPLES = 400; // Times kept of one second.

function second() {
  return { requests: 0, cache: {}, tier: {}, shed: {}, errors: 0, ttft: [], tpot: [] };
}

const HITS = ["hit-exact", "hit-semantic"];
const add = (tally, name, weight) => (tally[name] = (tally[name] ?? 0) + weight);

export class Recent {
  constructor(kept) {
    this.kept = kept;
    this.rows = []; // The newest first.
    this.seconds = new Map();
    this.now = 0; // The gateway's clock, seconds.
    this.heard = 0;
  }

  // The gateway's clock at this moment.
  clock() {
    return this.now ? this.now + (performance.now() - this.heard) / 1000 : 0;
  }

  hear(time) {
    if (time > this.clock() || this.now - time > 60) {
      this.now = time;
      this.heard = performance.now();
    }
  }

  // Decisions as one event has them; `missed` more came, of which only the number is known.
  take(rows, missed) {
    const weight = rows.length ? (rows.length + missed) / rows.length : 1;
    for (const row of rows) this.add(row, weight);
    this.rows = [...rows].reverse().concat(this.rows).slice(0, this.kept);
    const oldest = Math.floor(this.clock()) - SPAN;
    for (const at of this.seconds.keys()) if (at < oldest) this.seconds.delete(at);
  }

  add(row, weight) {
    const at = Math.floor(row.time);
    let found = this.seconds.get(at);
    if (!found) this.seconds.set(at, (found = second()));
    found.requests += weight;
    add(found.cache, row.cache, weight);
    add(found.tier, row.tier, weight);
    if (row.shed) add(found.shed, row.reason ?? "refused", weight);
    if (row.status >= 500) found.errors += weight;
    if (row.stream && row.tier !== "none" && !HITS.includes(row.cache)) {
      if (row.ttft_ms !== null && found.ttft.length < SAMPLES) found.ttft.push(row.ttft_ms);
      if (row.tpot_ms !== null && found.tpot.length < SAMPLES) found.tpot.push(row.tpot_ms);
    }
  }

  // The seconds of the last `length`, added up.
  window(length) {
    const from = this.clock() - length;
    const whole = second();
    for (const [at, part] of this.seconds) {
      if (at < from) continue;
      whole.requests += part.requests;
      whole.errors += part.errors;
      for (const name of ["cache", "tier", "shed"]) {
        for (const [key, value] of Object.entries(part[name])) add(whole[name], key, value);
      }
      whole.ttft.push(...part.ttft);
      whole.tpot.push(...part.tpot);
    }
    whole.ttft.sort((a, b) => a - b);
    whole.tpot.sort((a, b) => a - b);
    return whole;
  }

  // Columns for the charts: seconds, then requests, hits and refusals; and seconds, median and 95th percentile of TTFT.
  series() {
    const end = Math.floor(this.clock());
    const rate = [[], [], [], []];
    const ttft = [[], [], []];
    // Not the time before anything was known, but a minute at least.
    const first = Math.max(end - SPAN + 1, Math.min(end - WINDOW, ...this.seconds.keys()));
    for (let at = first; at < end; at += 1) {
      const part = this.seconds.get(at);
      rate[0].push(at);
      rate[1].push(part?.requests ?? 0);
      rate[2].push(part ? HITS.reduce((sum, name) => sum + (part.cache[name] ?? 0), 0) : 0);
      rate[3].push(part ? Object.values(part.shed).reduce((sum, value) => sum + value, 0) : 0);
      const times = part ? [...part.ttft].sort((a, b) => a - b) : [];
      ttft[0].push(at);
      ttft[1].push(quantile(times, 0.5));
      ttft[2].push(quantile(times, 0.95));
    }
    return { rate, ttft };
  }
}
