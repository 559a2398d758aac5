"""What a run means: the document of `forebay bench`, with the keys of `forebay simulate` (docs/bench.md)."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.load.records import Measured, taken
from bench.load.steady import steady
from capacity.intervals import BATCHES, T_9, Estimate, mean_of, percentiles_of
from capacity.lengths import length_classes

Values = NDArray[np.float64]
Rows = NDArray[np.bool_]

PERCENTS = (50, 90, 95, 99)
METRICS = ("ttft", "tpot", "itl", "e2e")
# A request that goes out this much later than it was due is late; a run of which more than this share was late is void.
LATE, LATE_SHARE = 0.010, 0.01
# What of the wanted rate must have been sent.
KEPT_UP = 0.98
CACHES = {"hit-exact": "exact", "hit-semantic": "semantic", "miss": "miss", "bypass": "bypass"}


@dataclass(frozen=True)
class Aims:
    """Targets in seconds for goodput; None: none."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    @property
    def any(self) -> bool:
        """Whether there is one."""
        return any(value is not None for value in (self.ttft_s, self.tpot_s, self.e2e_s))


@dataclass(frozen=True)
class Wanted:
    """What was to be sent: tokens per question (-1: unknown), and what kind each question is.

    `bounds`: from how many tokens on prompt and output are long. `bounded`: an open loop with a limit in flight.
    """

    prompt: NDArray[np.int64]
    output: NDArray[np.int64]
    kinds: Sequence[str]
    bounds: tuple[int, int]
    open_loop: bool
    bounded: bool = False
    names: tuple[str, ...] = ()
    group: NDArray[np.int16] | None = None


class Run:
    """The arrays of a run that everything else is made of. `rows` of each metric: which requests have it."""

    def __init__(self, measured: Measured, wanted: Wanted) -> None:
        self.measured, self.wanted = measured, wanted
        found = self.found = measured.requests
        self.answered: Rows = found["error"] == ""
        # What the server counted; where it does not say, the chunks, which are tokens on most servers.
        self.tokens = np.where(found["output"] >= 0, found["output"], found["chunks"])
        self.prompt = np.where(found["prompt"] > 0, found["prompt"], wanted.prompt[found["index"]])
        streamed = np.isfinite(found["first"])
        # The generator's own lateness is told apart; who waited for a place in flight waited for the endpoint.
        self.start = found["due"] if wanted.bounded else found["begun"]
        self.ttft = found["first"] - self.start
        self.e2e = found["last"] - self.start
        with np.errstate(invalid="ignore"):
            self.tpot = (found["last"] - found["first"]) / np.maximum(self.tokens - 1, 1)
            several = (self.tokens > 1) & (found["last"] > found["first"])
        self.rows = {
            "ttft": self.answered & streamed,
            "tpot": self.answered & streamed & several,
            "e2e": self.answered & np.isfinite(found["last"]),
        }

    def __len__(self) -> int:
        return len(self.found)

    @property
    def duration_s(self) -> float:
        """From the first request being due to the last answer."""
        if not self.answered.any():
            return 0.0
        return float(np.nanmax(self.found["last"][self.answered]) - self.found["due"][0])

    def values(self, metric: str, rows: Rows | None = None) -> Values:
        """Seconds, in the order in which requests were due; `itl` has one per gap between two chunks."""
        if metric == "itl":
            chosen = self.answered if rows is None else self.answered & rows
            return taken(self.measured, np.flatnonzero(chosen)).gaps.astype(float)
        where = self.rows[metric] if rows is None else self.rows[metric] & rows
        found: Values = getattr(self, metric)[where]
        return found

    def good(self, aims: Aims) -> Rows:
        """Answered within the targets; an answer without a further token has no time per token to miss."""
        good = self.answered.copy()
        with np.errstate(invalid="ignore"):
            if aims.ttft_s is not None:
                good &= ~(self.ttft > aims.ttft_s)
            if aims.tpot_s is not None:
                good &= ~(self.rows["tpot"] & (self.tpot > aims.tpot_s))
            if aims.e2e_s is not None:
                good &= ~(self.e2e > aims.e2e_s)
        return good

    def classes(self) -> Iterator[tuple[str, Rows]]:
        """The workload's own classes, else by prompt and output length; those that occur."""
        index = self.found["index"]
        if self.wanted.group is not None and self.wanted.names:
            parts = [(name, self.wanted.group[index] == at) for at, name in enumerate(self.wanted.names)]
        else:
            output = np.where(self.wanted.output[index] >= 0, self.wanted.output[index], self.tokens)
            prompt = np.where(self.wanted.prompt[index] >= 0, self.wanted.prompt[index], self.prompt)
            parts = length_classes(prompt, output, self.wanted.bounds)
        yield from ((name, rows) for name, rows in parts if rows.any())


def document(run: Run, aims: Aims, setup: Mapping[str, object], notes: Sequence[str] = ()) -> dict[str, object]:
    """The result as JSON holds it."""
    found, duration = run.found, run.duration_s
    done, tokens = int(run.answered.sum()), int(run.tokens[run.answered].sum())
    good = run.good(aims) if aims.any else None
    kinds = Counter(found["error"][~run.answered].tolist())
    late, reasons = lateness(run)
    return {
        "requests": len(run),
        "duration_s": duration,
        "throughput_rps": _per(done, duration),
        "throughput_tok_s": _per(tokens, duration),
        "throughput_rps_ci95": _rate_interval(run, np.ones(len(run))),
        "throughput_tok_s_ci95": _rate_interval(run, run.tokens.astype(float)),
        **{metric: summary(run.values(metric)) for metric in METRICS},
        "goodput": None if good is None else float(good.mean()),
        "goodput_rps": None if good is None else _per(int(good.sum()), duration),
        "goodput_ci95": None if good is None else _share_interval(good),
        "slot_utilization": None,
        "preemptions": None,
        "success": done / len(run),
        "outcomes": {"done": done, **kinds},
        "errors": len(run) - done,
        "cache": {name: int((found["cache"] == header).sum()) for header, name in CACHES.items()},
        "littles_law_ratio": littles_law_ratio(run),
        "classes": [_part(run, name, rows, good) for name, rows in run.classes()],
        "by_cache": [_part(run, CACHES[h], found["cache"] == h, good) for h in CACHES if (found["cache"] == h).any()],
        "by_tier": [_part(run, t, found["tier"] == t, good) for t in sorted(set(found["tier"].tolist()) - {""})],
        "by_kind": _by_kind(run, good),
        "by_turn": _by_turn(run, good),
        "steady": _steady(run, aims),
        "tokens": _tokens(run),
        "lateness": late,
        "valid": not reasons,
        "invalid_because": reasons,
        "aims": {"ttft_s": aims.ttft_s, "tpot_s": aims.tpot_s, "e2e_s": aims.e2e_s},
        "setup": dict(setup),
        "warnings": list(notes),
    }


def summary(values: Values) -> dict[str, object]:
    """Mean and percentiles with their intervals; None where there is no value."""
    if not len(values):
        return {"mean": None, **{f"p{percent}": None for percent in PERCENTS}, "max": None, "ci95": None}
    mean, found = mean_of(values), percentiles_of(values, PERCENTS)
    named = {"mean": mean, **{f"p{percent}": one for percent, one in zip(PERCENTS, found, strict=True)}}
    figures: dict[str, object] = {name: one.value for name, one in named.items()}
    return {**figures, "max": float(values.max()), "ci95": {name: _ends(one) for name, one in named.items()}}


def lateness(run: Run) -> tuple[dict[str, object], list[str]]:
    """How late requests went out and answers were read, and why the run is void, if it is."""
    found = run.found
    late = np.zeros(len(run)) if run.wanted.bounded else np.nan_to_num(found["begun"] - found["due"], nan=0.0)
    share = float((late > LATE).mean())
    figures: dict[str, object] = {
        **{f"p{percent}_s": float(np.percentile(late, percent)) for percent in (50, 95, 99)},
        "max_s": float(late.max()),
        "late_share": share,
        "read_p99_s": float(np.percentile(found["lag"], 99)),
        "read_max_s": float(found["lag"].max()),
        "processes": len(run.measured.busy),
        "busy": max(run.measured.busy, default=0.0),
    }
    reasons = []
    if share > LATE_SHARE and int((late > LATE).sum()) > 1:
        reasons.append(
            f"{share:.1%} of the requests went out over {LATE * 1000:.0f} ms after they were due: the generator could "
            "not keep up; give it --processes, or more of the machine"
        )
    if run.wanted.open_loop and not run.wanted.bounded and len(found) > 1 and found["due"][-1] > found["due"][0]:
        planned = float(found["due"][-1] - found["due"][0])
        taken_s = float(np.nanmax(found["begun"]) - found["due"][0])
        figures["rate_kept"] = planned / max(taken_s, planned)
        if planned / max(taken_s, planned) < KEPT_UP:
            reasons.append(f"only {planned / taken_s:.1%} of the wanted rate was sent")
    return figures, reasons


def littles_law_ratio(run: Run) -> float | None:
    """Requests in flight as the generator counted them over what the answers' own times say.

    1 where every request is accounted for; above 1 where requests failed, whose time is in no answer, or where answers
    ended long after their last token.
    """
    sojourns = float(run.values("e2e").sum())
    return run.measured.area / sojourns if sojourns > 0 else None


def _part(run: Run, name: str, rows: Rows, good: Rows | None) -> dict[str, object]:
    return {
        "name": name,
        "requests": int(rows.sum()),
        "errors": int((rows & ~run.answered).sum()),
        **{metric: summary(run.values(metric, rows)) for metric in METRICS},
        "goodput": None if good is None or not rows.any() else float(good[rows].mean()),
        "goodput_ci95": None if good is None else _share_interval(good[rows]),
        "output_tokens": int(run.tokens[rows & run.answered].sum()),
    }


def _by_kind(run: Run, good: Rows | None) -> list[dict[str, object]]:
    kinds = np.array(run.wanted.kinds)[run.found["index"]] if len(run.wanted.kinds) else np.array([])
    names = sorted(set(kinds.tolist()))
    if len(names) < 2:
        return []
    parts = []
    for name in names:
        rows = kinds == name
        part = _part(run, name, rows, good)
        part["cache"] = {short: int((run.found["cache"][rows] == h).sum()) for h, short in CACHES.items()}
        parts.append(part)
    return parts


def _by_turn(run: Run, good: Rows | None) -> list[dict[str, object]]:
    turns = sorted(set(run.found["turn"].tolist()))
    return [_part(run, f"turn {turn + 1}", run.found["turn"] == turn, good) for turn in turns] if len(turns) > 1 else []


def _steady(run: Run, aims: Aims) -> dict[str, object]:
    """The part between warm-up and the last arrival, by rule; its rate is of what was answered within it."""
    found = run.found
    cut = steady(found["due"], run.e2e, run.answered)
    rows = np.zeros(len(run), dtype=bool)
    rows[cut.begin : cut.end] = True
    length = cut.to_s - cut.from_s
    with np.errstate(invalid="ignore"):
        within = run.answered & (found["last"] >= cut.from_s) & (found["last"] < cut.to_s)
    good = run.good(aims) if aims.any else None
    return {
        "settled": cut.settled,
        "from_s": cut.from_s,
        "to_s": cut.to_s,
        "requests": int(rows.sum()),
        "warm_up_requests": cut.begin,
        "throughput_rps": _per(int(within.sum()), length),
        "throughput_tok_s": _per(int(run.tokens[within].sum()), length),
        **{metric: summary(run.values(metric, rows)) for metric in METRICS},
        "goodput": None if good is None else float(good[rows].mean()),
    }


def _tokens(run: Run) -> dict[str, object]:
    """Who counted the tokens, and whether the chunks agree."""
    found, done = run.found, run.answered
    said = done & (found["output"] >= 0)
    chunks, output = int(found["chunks"][said].sum()), int(found["output"][said].sum())
    index = found["index"]
    wanted, given = run.wanted.output[index], done & (run.wanted.output[index] >= 0)
    return {
        "source": "usage" if said.any() else "chunks",
        "prompt_mean": float(run.prompt[done].mean()) if done.any() else None,
        "output_mean": float(run.tokens[done].mean()) if done.any() else None,
        "without_usage": int((done & (found["output"] < 0)).sum()),
        "chunks": int(found["chunks"][done].sum()),
        "tokens_per_chunk": output / chunks if chunks else None,
        "cached_prompt": int(np.maximum(found["cached"], 0).sum()),
        "not_as_wanted": int((run.tokens[given] != wanted[given]).sum()),
    }


def _per(count: int, seconds: float) -> float | None:
    return count / seconds if seconds > 0 else None


def _ends(estimate: Estimate) -> list[float] | None:
    return None if estimate.low is None or estimate.high is None else [estimate.low, estimate.high]


def _rate_interval(run: Run, weights: Values) -> list[float] | None:
    """95 % interval of a rate from what was answered in ten equal parts of the time; None for under 50 answers."""
    last, answered = run.found["last"], run.answered
    if int(answered.sum()) < 5 * BATCHES:
        return None
    begin, end = float(run.found["due"][0]), float(np.nanmax(last[answered]))
    parts, _ = np.histogram(last[answered], np.linspace(begin, end, BATCHES + 1), weights=weights[answered])
    rates = parts * BATCHES / (end - begin)
    mean, half = float(rates.mean()), float(T_9 * rates.std(ddof=1) / np.sqrt(BATCHES))
    return [mean - half, mean + half]


def _share_interval(good: Rows) -> list[float] | None:
    """95 % interval of a share by batch means; the requests of one moment share their fate, so it is not binomial."""
    size = len(good) // BATCHES
    if size < 5:
        return None
    parts = good[len(good) - size * BATCHES :].reshape(BATCHES, size).mean(axis=1)
    share, half = float(good.mean()), float(T_9 * np.sqrt(parts.var(ddof=1) / BATCHES))
    return [max(share - half, 0.0), min(share + half, 1.0)]
