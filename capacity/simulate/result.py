"""What a run gives: a record per request, totals, and the document of `forebay simulate`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from capacity.intervals import Estimate, mean_of, percentile_of, percentiles_of
from capacity.lengths import length_classes
from capacity.simulate.world import DONE, REJECTED, TIMED_OUT, TOO_LONG, Records

Values = NDArray[np.float64]

METRICS = ("ttft", "tpot", "e2e")
PERCENTS = (50, 90, 95, 99)
_BETWEEN = {
    "ttft": ("arrived", "first"),
    "tpot": ("first", "finished"),
    "e2e": ("arrived", "finished"),
    "wait": ("arrived", "started"),
}
OUTCOMES = {DONE: "done", REJECTED: "rejected", TIMED_OUT: "timed_out", TOO_LONG: "too_long"}


@dataclass(frozen=True)
class Slo:
    """Targets in seconds; None: none. A request is good when it was answered and meets both."""

    ttft_s: float | None = None
    tpot_s: float | None = None


@dataclass(frozen=True)
class Totals:
    """Sums over the replicas of a run.

    `in_system` is the integral of the number of requests in the system as the engine counted it, event by event
    (request-seconds): Little's law compares it with the requests' own records. `slot_steps` of `all_slot_steps`: slots
    that yielded a token, over steps; of a static batch, all slots are those of the batch until its longest answer ends;
    of an engine, `max_num_seqs` in every step; of batches without lengths, the places of each batch.
    """

    in_system: float
    busy_s: float
    steps: int
    slot_steps: float
    all_slot_steps: float
    preemptions: int = 0
    peak_kv_blocks: int = 0
    prefilled_tokens: int = 0

    def plus(self, other: "Totals") -> "Totals":
        """Both together; the peak is the larger one."""
        return Totals(
            self.in_system + other.in_system,
            self.busy_s + other.busy_s,
            self.steps + other.steps,
            self.slot_steps + other.slot_steps,
            self.all_slot_steps + other.all_slot_steps,
            self.preemptions + other.preemptions,
            max(self.peak_kv_blocks, other.peak_kv_blocks),
            self.prefilled_tokens + other.prefilled_tokens,
        )


@dataclass(frozen=True)
class Result:
    """A run. `records`: one per request in order of arrival (`world.REQUEST`), times in seconds.

    `group` indexes `names`. `log`: the first steps (`world.STEP`), as many as were asked for. Percentiles leave out the
    first `warmup` share of the requests.
    """

    records: Records
    group: NDArray[np.int16]
    names: tuple[str, ...]
    totals: Totals
    log: Records
    warmup: float = 0.0
    warnings: tuple[str, ...] = ()
    setup: dict[str, object] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.records)

    @property
    def done(self) -> NDArray[np.bool_]:
        """Which requests were answered."""
        answered: NDArray[np.bool_] = self.records["outcome"] == DONE
        return answered

    @property
    def duration_s(self) -> float:
        """From the first arrival to the last answer."""
        done = self.records["finished"][self.done]
        return float(done.max() - self.records["arrived"][0]) if len(done) else 0.0

    def values(self, metric: str, rows: NDArray[np.bool_] | None = None) -> Values:
        """`ttft`, `tpot`, `e2e` or `wait` (to the start of service) of the answered requests, in order of arrival.

        A single-token answer has no `tpot` and is left out of it.
        """
        found, counted = self._all(metric)
        if rows is not None:
            counted = counted & rows
        return found if counted.all() else found[counted]

    def _all(self, metric: str) -> tuple[Values, NDArray[np.bool_]]:
        """A value per request, and which of them count."""
        if metric not in _BETWEEN:
            raise ValueError(f"{metric!r} is not a metric; legal are {', '.join(_BETWEEN)}")
        start, end = _BETWEEN[metric]
        found: Values = self.records[end] - self.records[start]
        counted = self.done
        counted[: int(self.warmup * len(counted))] = False
        if metric == "tpot":
            counted &= (self.records["output"] > 1) & (found > 0)
            found /= np.maximum(self.records["output"] - 1, 1)
        return found, counted

    def mean(self, metric: str) -> Estimate:
        """Mean with its interval. Raises ValueError where no request has this metric."""
        return mean_of(_some(self.values(metric), metric))

    def percentile(self, metric: str, percent: float) -> Estimate:
        """Percentile with its interval. Raises ValueError where no request has this metric."""
        return percentile_of(_some(self.values(metric), metric), percent)

    @property
    def littles_law_ratio(self) -> float | None:
        """The engine's own integral of the number in system over what the records say: 1 where nothing got lost."""
        stayed = self.records["outcome"]
        rows = (stayed == DONE) | (stayed == TIMED_OUT)
        sojourns = float((self.records["finished"][rows] - self.records["arrived"][rows]).sum())
        return self.totals.in_system / sojourns if sojourns > 0 else None

    def counts(self) -> dict[str, int]:
        """Requests by outcome; every request has one of them."""
        return {name: int((self.records["outcome"] == code).sum()) for code, name in OUTCOMES.items()}

    def good(self, slo: Slo) -> NDArray[np.bool_]:
        """Which requests were answered within the targets."""
        records, good = self.records, self.done.copy()
        if slo.ttft_s is not None:
            good &= records["first"] - records["arrived"] <= slo.ttft_s
        if slo.tpot_s is not None:
            good &= records["finished"] - records["first"] <= slo.tpot_s * (records["output"] - 1)
        return good

    def classes(self) -> Iterator[tuple[str, NDArray[np.bool_]]]:
        """Name and rows of each class that occurs: the workload's own, else by the lengths of prompt and answer."""
        if self.names:
            parts = [(name, self.group == index) for index, name in enumerate(self.names)]
        else:
            parts = length_classes(self.records["prompt"], self.records["output"])
        yield from ((name, rows) for name, rows in parts if rows.any())

    def document(self, slo: Slo) -> dict[str, object]:
        """The result as JSON holds it."""
        duration, counts = self.duration_s, self.counts()
        tokens = int(self.records["output"][self.done].sum())
        aims = slo.ttft_s is not None or slo.tpot_s is not None
        good = int(self.good(slo).sum()) if aims else None
        totals, values = self.totals, {metric: self._all(metric) for metric in METRICS}
        return {
            "requests": len(self),
            "duration_s": duration,
            "throughput_rps": counts["done"] / duration if duration > 0 else None,
            "throughput_tok_s": tokens / duration if duration > 0 else None,
            **{metric: _summary(found[counted], intervals=True) for metric, (found, counted) in values.items()},
            "goodput": None if good is None else good / len(self),
            "goodput_rps": None if good is None or duration <= 0 else good / duration,
            "slot_utilization": totals.slot_steps / totals.all_slot_steps if totals.all_slot_steps else None,
            "preemptions": totals.preemptions,
            "success": counts["done"] / len(self),
            "outcomes": counts,
            "steps": totals.steps,
            "busy_s": totals.busy_s,
            "prefilled_tokens": totals.prefilled_tokens,
            "cached_tokens": int(self.records["cached"].sum()),
            "peak_kv_blocks": totals.peak_kv_blocks or None,
            "littles_law_ratio": self.littles_law_ratio,
            "classes": [
                {
                    "name": name,
                    "requests": int(rows.sum()),
                    **{
                        metric: _summary(found[counted & rows], intervals=False)
                        for metric, (found, counted) in values.items()
                    },
                }
                for name, rows in self.classes()
            ],
            "setup": self.setup,
            "warnings": list(self.warnings),
        }

    def rows(self) -> Iterator[dict[str, object]]:
        """One document per request."""
        names = self.names or ("all",)
        for index, (record, group) in enumerate(zip(self.records, self.group, strict=True)):
            answered = record["outcome"] == DONE
            tokens = int(record["output"])
            yield {
                "id": index,
                "class": names[group],
                "priority": int(record["priority"]),
                "outcome": OUTCOMES[int(record["outcome"])],
                "replica": int(record["replica"]),
                "arrived_s": float(record["arrived"]),
                "started_s": float(record["started"]) if record["started"] >= 0 else None,
                "first_token_s": float(record["first"]) if answered else None,
                "finished_s": float(record["finished"]),
                "prompt_tokens": int(record["prompt"]),
                "output_tokens": tokens,
                "cached_tokens": int(record["cached"]),
                "preemptions": int(record["preempted"]),
                "ttft_s": float(record["first"] - record["arrived"]) if answered else None,
                "tpot_s": float((record["finished"] - record["first"]) / (tokens - 1))
                if answered and tokens > 1
                else None,
                "e2e_s": float(record["finished"] - record["arrived"]) if answered else None,
            }


def _some(values: Values, metric: str) -> Values:
    if not len(values):
        raise ValueError(f"no request has a {metric}")
    return values


def _summary(values: Values, *, intervals: bool) -> dict[str, object]:
    if not len(values):
        return {"mean": None, **{f"p{percent}": None for percent in PERCENTS}}
    mean, found = mean_of(values), percentiles_of(values, PERCENTS)
    named = {f"p{percent}": one for percent, one in zip(PERCENTS, found, strict=True)}
    summary: dict[str, object] = {"mean": mean.value, **{name: one.value for name, one in named.items()}}
    if intervals:
        summary["ci95"] = {"mean": _ends(mean), **{name: _ends(one) for name, one in named.items()}}
    return summary


def _ends(estimate: Estimate) -> Sequence[float] | None:
    return None if estimate.low is None or estimate.high is None else (estimate.low, estimate.high)
