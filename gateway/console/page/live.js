// The live view: tiles and charts once a second, decisions as they come, and nothing at all while nobody can see it.

import { Lines } from "./charts.js";
import { NONE, clock, count, find, make, money, ms, quantile, share } from "./format.js";
import { Recent, WINDOW } from "./recent.js";

const FLOOD = 40; // More decisions than this in one event are drawn once a second.
const TILES = {
  rate: "Requests per second", hits: "Cache hit rate", tiers: "Small / frontier", ttft: "TTFT p50 / p95, ms",
  tpot: "TPOT p50 / p95, ms", queue: "In queue / in tiers", shed: "Refused", saved: "Saved tokens", cost: "Saved cost",
  errors: "Errors (5xx)",
};

export class Live {
  constructor() {
    this.recent = new Recent(200);
    this.told = null;
    this.paused = false;
    this.fresh = []; // Not drawn yet, the newest first.
    this.drawn = 0;
    this.body = find("#decisions tbody");
    this.filter = find("#filter");
    this.tiles = this.makeTiles();
    this.rate = new Lines(find("#chart-rate"), "Requests per second", ["requests", "cache hits", "refused"]);
    this.ttft = new Lines(find("#chart-ttft"), "Time to first token", ["p50", "p95"]);
    this.filter.addEventListener("input", () => this.redraw());
    this.filter.addEventListener("submit", (event) => event.preventDefault());
    find("#pause").addEventListener("click", (event) => this.pause(event.currentTarget));
    document.addEventListener("visibilitychange", () => this.look());
  }

  makeTiles() {
    const found = {};
    for (const [name, title] of Object.entries(TILES)) {
      const value = make("p", { kind: "value", text: NONE, "data-tile": name });
      const note = make("p", { kind: "note", text: "" });
      find("#tiles").append(make("div", { kind: "tile" }, make("h3", { text: title }), value, note));
      found[name] = { value, note };
    }
    return found;
  }

  get seen() {
    return !document.hidden && !find("#live").hidden;
  }

  event(name, data) {
    if (name === "state") {
      this.told = data;
      this.recent.hear(data.time);
      this.recent.kept = data.settings.history;
      if (this.seen) this.drawNumbers();
      return;
    }
    if (name !== "decisions") return;
    if (data.decisions.length) this.recent.hear(data.decisions.at(-1).time);
    this.recent.take(data.decisions, data.missed);
    this.fresh = [...data.decisions].reverse().concat(this.fresh).slice(0, this.recent.kept);
    const flood = data.decisions.length > FLOOD;
    if (this.seen && !this.paused && (!flood || performance.now() - this.drawn > 950)) this.drawRows();
  }

  // Everything that was left undrawn while nobody could see it.
  look() {
    if (!this.seen || !this.told) return;
    this.drawNumbers();
    if (!this.paused) this.drawRows();
  }

  pause(button) {
    this.paused = !this.paused;
    button.setAttribute("aria-pressed", String(this.paused));
    button.textContent = this.paused ? "Go on" : "Pause";
    if (!this.paused) this.redraw();
  }

  drawNumbers() {
    if (this.fresh.length && !this.paused && performance.now() - this.drawn > 950) this.drawRows();
    const told = this.told;
    const minute = this.recent.window(WINDOW);
    const ten = this.recent.window(10);
    const say = (name, value, note) => {
      this.tiles[name].value.textContent = value;
      this.tiles[name].note.textContent = note;
    };
    const { totals } = told;
    const sum = (tally) => Object.values(tally).reduce((whole, value) => whole + value, 0);
    say("rate", (ten.requests / 10).toFixed(1), `${count(Math.round(minute.requests))} in the last minute, ${count(sum(totals.cache))} in all`);
    const { cache, tier } = minute;
    const exact = cache["hit-exact"] ?? 0;
    const semantic = cache["hit-semantic"] ?? 0;
    const looked = exact + semantic + (cache.miss ?? 0);
    say("hits", share(exact + semantic, looked), `exact ${share(exact, looked)}, semantic ${share(semantic, looked)}`);
    const asked = (tier.small ?? 0) + (tier.frontier ?? 0);
    const part = (name) => share(tier[name] ?? 0, asked);
    say("tiers", asked ? `${part("small")} / ${part("frontier")}` : NONE, `${count(Math.round(asked))} of the last minute asked a tier`);
    for (const name of ["ttft", "tpot"]) {
      const times = minute[name];
      const value = times.length ? `${ms(quantile(times, 0.5))} / ${ms(quantile(times, 0.95))}` : NONE;
      say(name, value, times.length ? "streams of the tiers, last minute" : "no streams in the last minute");
    }
    const tiers = Object.values(told.tiers);
    const inside = (name) => tiers.reduce((whole, each) => whole + each[name], 0);
    say("queue", `${inside("waiting")} / ${inside("inflight")}`, `room for ${inside("max_waiting")} / ${inside("max_inflight")}`);
    const reasons = Object.entries(minute.shed).map(([reason, value]) => `${reason} ${Math.round(value)}`);
    say("shed", count(Math.round(sum(minute.shed))), reasons.join(", ") || "none in the last minute");
    const by = (tally, format) => Object.entries(tally).map(([source, value]) => `${source} ${format(value)}`).join(", ");
    say("saved", count(sum(totals.saved_tokens)), by(totals.saved_tokens, count) || "since the start");
    say("cost", money(sum(totals.saved_cost)), by(totals.saved_cost, money) || "since the start");
    say("errors", count(Math.round(minute.errors)), `${count(sum(totals.errors))} failed calls to tiers since the start`);
    this.drawState(told);
    const { rate, ttft } = this.recent.series();
    this.rate.show(rate, `Requests per second over five minutes; at this moment ${(ten.requests / 10).toFixed(1)}`);
    this.ttft.show(ttft, `Time to first token over five minutes, median and 95th percentile: ${this.tiles.ttft.value.textContent} ms`);
  }

  drawState(told) {
    const cards = Object.entries(told.tiers).map(([name, tier]) => {
      const servers = tier.servers.map((server) => {
        const well = server.health === "up" && server.breaker === "closed";
        const fault = server.fault ? `: ${server.fault}` : "";
        const text = `${server.url} ${server.health}, breaker ${server.breaker}, ${server.outstanding} running${fault}`;
        return make("li", { text, kind: well ? "good" : "bad" });
      });
      const room = `${tier.inflight} of ${tier.max_inflight} places taken, ${tier.waiting} waiting`;
      return make("div", { kind: "card" }, make("h4", { text: `${name}: ${tier.model}` }), make("p", { kind: "note", text: room }), make("ul", {}, ...servers));
    });
    const { cache, embedder, breakers } = told;
    const parts = [
      [`cache in ${cache.store.kind}: ${count(cache.exact)} exact, ${count(cache.semantic)} semantic entries${cache.fault ? `: ${cache.fault}` : ""}`, !cache.fault],
      [`embedder ${embedder.state}${embedder.fault ? `: ${embedder.fault}` : ""}`, embedder.state !== "failed"],
      ...Object.entries(breakers).map(([name, state]) => [`breaker of ${name.replace("_", " ")} ${state}`, state === "closed"]),
      ...told.degraded.map((line) => [line, false]),
    ];
    if (told.settings.workers > 1) parts.push([`${told.answered} of ${told.settings.workers} workers answer`, told.answered === told.settings.workers]);
    const list = parts.map(([text, well]) => make("li", { text, kind: well ? "good" : "bad" }));
    cards.push(make("div", { kind: "card" }, make("h4", { text: "Around them" }), make("ul", {}, ...list)));
    const place = find("#state");
    // Text only where it differs: what somebody has selected stays.
    const said = cards.map((card) => card.textContent).join("\n");
    if (place.dataset.said === said) return;
    place.dataset.said = said;
    place.replaceChildren(...cards);
  }

  matches(row) {
    const { text, cache, tier, status } = this.wanted;
    if (cache && row.cache !== cache) return false;
    if (tier && row.tier !== tier) return false;
    if (status && !String(row.status).startsWith(status)) return false;
    if (!text) return true;
    const said = [row.tenant, row.key, row.route, row.model, row.request_id, row.reason, row.route_reason, row.guard];
    return said.some((value) => value && String(value).toLowerCase().includes(text));
  }

  get wanted() {
    const given = new FormData(this.filter);
    return { text: given.get("text").trim().toLowerCase(), cache: given.get("cache"), tier: given.get("tier"), status: given.get("status") };
  }

  redraw() {
    this.body.replaceChildren();
    this.fresh = this.recent.rows;
    this.drawRows();
  }

  drawRows() {
    this.drawn = performance.now();
    const rows = this.fresh.filter((row) => this.matches(row)).map((row) => this.line(row));
    this.fresh = [];
    this.body.prepend(...rows);
    while (this.body.rows.length > this.recent.kept) this.body.lastElementChild.remove();
    const kept = this.recent.rows.length;
    find("#shown").textContent = `${this.body.rows.length} shown of the last ${kept}`;
  }

  line(row) {
    const cell = (text, kind) => make("td", kind ? { text, kind } : { text });
    const open = make("button", { text: clock(row.time), type: "button", "aria-label": `Details of the decision at ${clock(row.time)}` });
    open.addEventListener("click", () => details(row));
    const decimals = (value) => (value === null ? NONE : value.toFixed(4));
    const mark = row.status >= 500 ? "number bad" : row.status >= 400 ? "number warn" : "number";
    return make("tr", { "data-id": row.request_id },
      make("td", {}, open), cell(row.tenant), cell(row.route), cell(row.cache), cell(decimals(row.similarity), "number"),
      cell(row.guard ?? NONE), cell(decimals(row.complexity), "number"), cell(row.tier), cell(ms(row.queue_ms), "number"),
      cell(ms(row.ttft_ms), "number"), cell(ms(row.duration_ms), "number"), cell(String(row.status), mark),
      cell(row.reason ?? row.route_reason ?? NONE));
  }
}

function details(row) {
  const dialog = find("#details");
  const parts = Object.entries(row).flatMap(([name, value]) => [
    make("dt", { text: name.replaceAll("_", " ") }),
    make("dd", { text: value === null ? NONE : String(value) }),
  ]);
  dialog.querySelector("dl").replaceChildren(...parts);
  dialog.showModal();
}
