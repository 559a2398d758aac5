// The view to try a prompt: what would be decided, and the answer as it comes with every header.

import { NONE, find, make, ms } from "./format.js";

// No other site can have a browser send this header: it shows that a signed-in person asks from this page.
const OURS = { "content-type": "application/json", "x-forebay-console": "1" };
const WEIGHTIEST = 10;

export class Try {
  constructor() {
    this.form = find("#ask");
    this.abort = null;
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    find("#explain").addEventListener("click", () => this.form.reportValidity() && this.explain());
    find("#stop").addEventListener("click", () => this.abort?.abort());
  }

  async look() {
    const select = this.form.elements.model;
    if (select.options.length > 1) return;
    const answer = await fetch("/v1/models").catch(() => null);
    if (!answer?.ok) return;
    const names = (await answer.json()).data.map((model) => model.id).filter((name) => name !== "auto");
    select.append(...names.map((name) => make("option", { text: name })));
  }

  get body() {
    const { prompt, model } = this.form.elements;
    return { model: model.value, messages: [{ role: "user", content: prompt.value }], max_tokens: Number(this.form.elements.tokens.value) };
  }

  get headers() {
    return { ...OURS, "x-forebay-cache": this.form.elements.cache.value, "x-forebay-debug": "1" };
  }

  async explain() {
    const place = find("#explained");
    try {
      const answer = await fetch("/v1/explain", { method: "POST", headers: this.headers, body: JSON.stringify(this.body) });
      const told = await answer.json();
      place.replaceChildren(...(answer.ok ? explained(told) : [make("p", { kind: "bad", text: `${answer.status}: ${told.error.message}` })]));
      place.dataset.told = JSON.stringify(told);
    } catch (error) {
      place.replaceChildren(make("p", { kind: "bad", text: `No explanation: ${error.message}` }));
    }
  }

  async send() {
    // First: the answer itself changes what the cache would say.
    await this.explain();
    const place = find("#answer");
    place.textContent = "";
    this.abort = new AbortController();
    find("#stop").hidden = false;
    const began = performance.now();
    let first = null;
    let said = "";
    try {
      const body = JSON.stringify({ ...this.body, stream: true });
      const answer = await fetch("/v1/chat/completions", { method: "POST", headers: this.headers, body, signal: this.abort.signal });
      find("#headers tbody").replaceChildren(...[...answer.headers].map(([name, value]) => make("tr", {}, make("th", { text: name, scope: "row" }), make("td", { text: value }))));
      if (!answer.ok) throw new Error(`${answer.status}: ${(await answer.json()).error.message}`);
      await this.stream(answer, (text) => {
        first ??= performance.now() - began;
        place.textContent += text;
      });
      said = "Complete";
    } catch (error) {
      said = error.name === "AbortError" ? "Stopped" : error.message;
    }
    find("#stop").hidden = true;
    const shown = first === null ? "" : `, first text after ${ms(first)} ms`;
    find("#timing").textContent = `${said}${shown}, in all ${ms(performance.now() - began)} ms`;
  }

  async stream(answer, show) {
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const data = part.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
        if (!data || data === "[DONE]") continue;
        const chunk = JSON.parse(data);
        if (chunk.error) throw new Error(chunk.error.message);
        const text = chunk.choices?.[0]?.delta?.content;
        if (text) show(text);
      }
    }
  }
}

function pairs(entries) {
  return make("dl", {}, ...entries.flatMap(([name, value]) => [make("dt", { text: name }), make("dd", { text: value ?? NONE })]));
}

function table(titles, rows) {
  const head = make("tr", {}, ...titles.map((text) => make("th", { text, scope: "col" })));
  const body = rows.map((row) => make("tr", {}, ...row.map((text) => make("td", { text }))));
  return make("table", {}, make("thead", {}, head), make("tbody", {}, ...body));
}

function verdict(guard) {
  if (!guard) return null;
  const score = guard.score === null ? "" : `, score ${guard.score.toFixed(3)}`;
  return `${guard.served ? "agrees" : "refuses"} by ${guard.feature}${score}`;
}

const decimals = (value) => (value === null ? null : value.toFixed(4));

// The document of POST /v1/explain for people.
function explained({ cache, router, fingerprint, embedder }) {
  const { semantic } = cache;
  const missed = cache.exact !== "hit" && semantic.verdict !== "hit";
  const found = [
    make("h4", { text: "Tier" }),
    pairs([
      [missed ? "tier" : "tier on a miss", `${router.tier} (${router.reason})`],
      ["complexity", router.complexity === null ? "not scored" : `${decimals(router.complexity)}, threshold ${router.threshold}`],
      ...(router.cascade ? [["cascade", "the small tier is listened to, and may be given up"]] : []),
    ]),
    make("h4", { text: "Cache" }),
    pairs([
      ["exact", cache.exact],
      ["semantic", semantic.verdict + (semantic.reason ? ` (${semantic.reason})` : "")],
      ["nearest", semantic.nearest_id ? `${semantic.nearest_id}, similarity ${decimals(semantic.similarity)}, τ ${semantic.threshold}` : "none"],
      ["guard", verdict(semantic.guard)],
      ...(semantic.judge ? [["judge", semantic.judge]] : []),
      ["embedder", embedder],
    ]),
  ];
  if (semantic.nearest.length) {
    const rows = semantic.nearest.map((near) => [near.id.slice(0, 12), decimals(near.similarity), verdict(near.guard) ?? NONE]);
    found.push(make("h4", { text: "Nearest entries" }), table(["Entry", "Similarity", "Guard would say"], rows));
    const features = semantic.nearest[0].features.slice(0, WEIGHTIEST);
    if (features.length) {
      const measured = features.map((each) => [each.name, String(each.value), each.worth.toFixed(3)]);
      found.push(make("h4", { text: "What the guard sees in the nearest" }), table(["Feature", "Value", "Worth, log-odds"], measured));
    }
  }
  if (fingerprint) {
    found.push(make("h4", { text: "Fingerprint" }), pairs([
      ["entry", fingerprint.id], ["tenant", fingerprint.tenant], ["target", fingerprint.target], ["kind", fingerprint.kind],
      ["fields that count", fingerprint.fields.join(", ")], ["left out", fingerprint.left_out.join(", ") || NONE],
      ["partition", fingerprint.partition?.slice(0, 16)], ["embedder", fingerprint.embedder],
      ...(fingerprint.no_semantic_layer ? [["no semantic layer", fingerprint.no_semantic_layer]] : []),
    ]));
  }
  return found;
}
