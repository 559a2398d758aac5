"""A run as a Chrome trace (chrome://tracing, Perfetto): the steps of each replica, and the first requests."""

from collections.abc import Iterator

import orjson

from capacity.simulate.result import Result
from capacity.simulate.world import DONE


def chrome_trace(result: Result, requests: int = 2000) -> bytes:
    """The trace file: the steps that the run kept (`log_steps`) and as many requests, each as a wait and a stay."""
    events = [*_names(result), *_steps(result), *_requests(result, requests)]
    return orjson.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def _names(result: Result) -> Iterator[dict[str, object]]:
    for pid, name in enumerate(("steps", "requests")):
        yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}
    for replica in sorted({int(one) for one in result.log["replica"]}):
        yield {"ph": "M", "pid": 0, "tid": replica, "name": "thread_name", "args": {"name": f"replica {replica}"}}


def _steps(result: Result) -> Iterator[dict[str, object]]:
    for step in result.log:
        decoding, tokens = int(step["decoding"]), int(step["tokens"])
        parts = [f"decode {decoding}" if decoding else "", f"prefill {tokens}" if tokens else ""]
        yield {
            "ph": "X",
            "pid": 0,
            "tid": int(step["replica"]),
            "ts": _micros(step["start"]),
            "dur": _micros(step["end"] - step["start"]),
            "name": " + ".join(part for part in parts if part),
            "args": {"decoding": decoding, "prefill_tokens": tokens, "waiting": int(step["waiting"])},
        }


def _requests(result: Result, most: int) -> Iterator[dict[str, object]]:
    for index, record in enumerate(result.records[:most]):
        if record["outcome"] != DONE:
            continue
        same = {"cat": "request", "id": index, "pid": 1, "tid": index}
        lengths = {"prompt_tokens": int(record["prompt"]), "output_tokens": int(record["output"])}
        marks = (
            ("wait", record["arrived"], record["started"]),
            ("first token", record["started"], record["first"]),
            ("decode", record["first"], record["finished"]),
        )
        for name, start, end in marks:
            if end > start:
                yield {"ph": "b", "ts": _micros(start), "name": name, "args": lengths, **same}
                yield {"ph": "e", "ts": _micros(end), "name": name, **same}


def _micros(seconds: float) -> float:
    return round(float(seconds) * 1e6, 3)
