// What other thresholds would have done to requests that have been. Pure counting; no element of the page is touched.
//
// A request: { similarity, complexity: to four decimals or null, semantic: how the lookup ended, reason: why its tier,
// tier, input, output: tokens or null }.

const SCORED = ["complexity", "unfamiliar"]; // Why a tier was chosen by its score against the threshold.

// The requests in the columns that the gateway gives.
export function fromColumns({ columns, words }) {
  return columns.time.map((_, at) => ({
    similarity: columns.similarity[at],
    complexity: columns.complexity[at],
    semantic: words.semantic[columns.semantic[at]],
    reason: words.reason[columns.reason[at]],
    tier: words.tier[columns.tier[at]],
    input: columns.input[at],
    output: columns.output[at],
  }));
}

const SHADOW = /^shadow: entry \S+ (same|different)\b.*similarity of the questions ([\d.]+)/;

// The requests, and the comparisons of shadow mode, in a log: one JSON object per line, of which other lines are passed over.
export function fromLog(text) {
  const requests = [];
  const shadows = [];
  for (const line of text.split("\n")) {
    if (!line.startsWith("{")) continue;
    let said;
    try {
      said = JSON.parse(line);
    } catch {
      continue;
    }
    if (said.event === "request" && (said.semantic !== null || said.complexity !== null)) {
      requests.push({
        similarity: said.similarity, complexity: said.complexity, semantic: said.semantic ?? "none",
        reason: said.route_reason ?? "none", tier: said.tier, input: said.input_tokens, output: said.output_tokens,
      });
    } else if (said.event === "log") {
      const found = SHADOW.exec(said.message ?? "");
      if (found) shadows.push([Number(found[2]), found[1] === "same"]);
    }
  }
  return { requests, shadows };
}

function priced(prices, tier, { input, output }) {
  const price = prices[tier];
  return price && input !== null ? (price.input * input + price.output * output) / 1e6 : null;
}

// Where a request that misses the cache goes.
function tierOf(request, threshold) {
  if (request.complexity === null || !SCORED.includes(request.reason)) return request.tier;
  return request.complexity >= threshold ? "frontier" : "small";
}

// What goes to the tiers where `hits(request)` says which requests the cache answers.
function traffic(requests, complexity, prices, hits) {
  const found = { frontier: 0, tiers: 0, cost: 0, priced: 0, unknown: 0 };
  for (const request of requests) {
    if (hits(request)) continue;
    const tier = tierOf(request, complexity);
    if (tier === "none") {
      // It was a hit, or was refused: to which tier it would have gone is not known.
      if (request.semantic === "hit") found.unknown += 1;
      continue;
    }
    found.tiers += 1;
    if (tier === "frontier") found.frontier += 1;
    const cost = priced(prices, tier, request);
    if (cost !== null) {
      found.cost += cost;
      found.priced += 1;
    }
  }
  if (found.priced) found.cost += (found.cost / found.priced) * found.unknown;
  return found;
}

// The outcome with two thresholds; `similarity` null: the semantic layer is off.
export function recount({ requests, shadows, prices }, similarity, complexity) {
  const reaches = (request) => similarity !== null && request.similarity !== null && request.similarity >= similarity;
  const reached = requests.filter(reaches);
  const agreed = reached.filter((request) => request.semantic === "hit").length;
  const refused = reached.filter((request) => request.semantic === "guarded").length;
  const compared = shadows.filter(([value]) => similarity !== null && value >= similarity);
  const sure = traffic(requests, complexity, prices, (request) => reaches(request) && request.semantic === "hit");
  const most = traffic(requests, complexity, prices, (request) => reaches(request) && request.semantic !== "guarded");
  return {
    requests: requests.length,
    reached: reached.length,
    agreed,
    refused,
    unasked: reached.length - agreed - refused,
    compared: compared.length,
    contradicted: compared.filter(([, same]) => !same).length,
    // With every request that the guard was not asked about a miss, and with every one a hit.
    frontier: [sure, most].map((each) => (each.tiers ? each.frontier / each.tiers : null)),
    frontierCount: [sure.frontier, most.frontier],
    cost: [sure.cost, most.cost],
  };
}

// How many values lie in each of so many equal parts between the bounds.
export function histogram(values, [low, high], parts) {
  const counts = new Array(parts).fill(0);
  const width = (high - low) / parts;
  for (const value of values) {
    if (value === null || value < low || value > high) continue;
    counts[Math.min(parts - 1, Math.floor((value - low) / width + 1e-9))] += 1;
  }
  return [counts.map((_, at) => low + at * width), counts];
}
