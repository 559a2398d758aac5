// The what-if view: two thresholds to move, and what they would have done.

import { Distribution } from "./charts.js";
import { count, find, make, money, range } from "./format.js";
import { fromColumns, fromLog, histogram, recount } from "./recount.js";

const PARTS = 50;
const LARGEST = 512 * 1024 * 1024; // Of a log that is read, in bytes.

const ROWS = [
  ["Requests looked up or scored", (o) => count(o.requests), "requests"],
  ["Similarity at or above τ", (o) => count(o.reached), "reached"],
  ["… and the guard agreed: hits", (o) => count(o.agreed), "agreed"],
  ["… and the guard refused", (o) => count(o.refused), "refused"],
  ["… and the guard was not asked", (o) => count(o.unasked), "unasked"],
  ["Would have hit", (o) => range(o.agreed, o.agreed + o.unasked, count), "hits"],
  ["Shadow runs at or above τ that contradict", (o) => `${count(o.contradicted)} of ${count(o.compared)}`, "contradicted"],
  ["Share for the frontier tier", (o) => range(...o.frontier, (v) => (v === null ? "–" : `${(100 * v).toFixed(1)} %`)), "frontier"],
  ["Cost, in the unit of the prices", (o) => range(...o.cost, money), "cost"],
];

export class WhatIf {
  constructor() {
    this.data = null;
    this.similarity = new Handle("similarity", "Similarities", () => this.draw());
    this.complexity = new Handle("complexity", "Complexities", () => this.draw());
    find("#recent").addEventListener("click", () => this.load());
    find("#log").addEventListener("change", (event) => this.read(event.currentTarget.files[0]));
    find("#copy").addEventListener("click", () => this.copy());
  }

  // The first time somebody looks.
  look() {
    if (!this.data) this.load();
  }

  async load() {
    const source = find("#source");
    try {
      const answer = await fetch("/admin/lookups", { cache: "no-store" });
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      const told = await answer.json();
      const first = told.columns.time.reduce((least, at) => Math.min(least, at), Infinity);
      const since = Number.isFinite(first) ? ` since ${new Date(first * 1000).toLocaleString()}` : "";
      this.take({ requests: fromColumns(told), shadows: told.shadows, prices: told.settings.prices, settings: told.settings });
      source.textContent = `${count(this.data.requests.length)} lookups of this gateway${since}`;
    } catch (error) {
      source.textContent = `The lookups could not be read: ${error.message}`;
    }
  }

  // A log stays in this browser: it is read here and sent nowhere.
  async read(file) {
    if (!file) return;
    const source = find("#source");
    if (file.size > LARGEST) {
      source.textContent = "The file is larger than 512 MiB.";
      return;
    }
    if (!this.data) await this.load();
    const found = fromLog(await file.text());
    const settings = this.data?.settings ?? { similarity: null, complexity: 0.5, prices: {} };
    this.take({ ...found, prices: settings.prices, settings });
    source.textContent = `${count(found.requests.length)} lookups in ${file.name}, at this gateway's prices`;
  }

  take(data) {
    const first = this.data === null;
    this.data = data;
    const { similarity, complexity } = data.settings;
    if (first) {
      this.similarity.set(similarity ?? 1);
      this.complexity.set(complexity);
    }
    this.similarity.show(data.requests.map((request) => request.similarity), this.low());
    this.complexity.show(data.requests.map((request) => request.complexity), 0);
    this.draw();
  }

  // Most similarities are high: the part where they are is shown.
  low() {
    const known = this.data.requests.map((request) => request.similarity).filter((value) => value !== null);
    return known.length && known.every((value) => value >= 0.5) ? 0.5 : 0;
  }

  draw() {
    if (!this.data) return;
    const { settings } = this.data;
    const [tau, theta] = [this.similarity.value, this.complexity.value];
    const as = recount(this.data, settings.similarity, settings.complexity);
    const would = recount(this.data, settings.similarity === null ? null : tau, theta);
    const rows = ROWS.map(([title, text, name]) => make("tr", {},
      make("th", { text: title, scope: "row" }),
      make("td", { text: text(as), kind: "number", "data-as": name }),
      make("td", { text: text(would), kind: "number", "data-would": name })));
    find("#outcome tbody").replaceChildren(...rows);
    const semantic = settings.similarity === null ? "" : `cache:\n  semantic:\n    threshold: ${tau}\n`;
    find("#lines").textContent = `${semantic}router:\n  threshold: ${theta}`;
    find("#copied").textContent = "";
  }

  async copy() {
    const said = find("#copied");
    try {
      await navigator.clipboard.writeText(find("#lines").textContent);
      said.textContent = "Copied";
    } catch {
      // Browsers allow it on trusted origins only: mark it, for the person to copy.
      getSelection().selectAllChildren(find("#lines"));
      said.textContent = "Selected: copy it with the keyboard";
    }
  }
}

// One threshold: a slider, a number and a line on the plot, which always agree.
class Handle {
  constructor(name, title, moved) {
    Object.assign(this, { title, moved });
    this.slider = find(`#${name}`);
    this.number = find(`#${name}-number`);
    this.plot = new Distribution(find(`#chart-${name}`), title, (value) => this.set(value, true));
    this.slider.addEventListener("input", () => this.set(Number(this.slider.value), true));
    this.number.addEventListener("change", () => this.set(Number(this.number.value), true));
  }

  set(value, told = false) {
    this.value = Math.min(1, Math.max(0, Math.round(value * 10_000) / 10_000));
    if (Math.abs(Number(this.slider.value) - this.value) >= 0.0025 || !told) this.slider.value = this.value;
    this.number.value = this.value;
    this.slider.setAttribute("aria-valuetext", String(this.value));
    this.plot.at(this.value);
    if (told) this.moved();
  }

  show(values, low) {
    this.plot.bounds = [low, 1];
    const known = values.filter((value) => value !== null).sort((a, b) => a - b);
    const middle = known.length ? `, half of them below ${known[Math.floor(known.length / 2)]}` : "";
    this.plot.show(histogram(known, [low, 1], PARTS), `${this.title} of ${known.length} requests${middle}`);
  }
}
