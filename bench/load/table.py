"""The result for a terminal."""

from typing import Any

_METRICS = (("ttft", "TTFT"), ("tpot", "TPOT"), ("itl", "ITL"), ("e2e", "E2E"))


def table(document: dict[str, Any]) -> str:
    """Lines for people; times in milliseconds."""
    rates = f"{_figure(document['throughput_rps'], 2)} requests/s, {_figure(document['throughput_tok_s'], 1)} tokens/s"
    answered = f"answered {document['success']:.2%}"
    lines = [
        f"{document['requests']} requests in {document['duration_s']:.1f} s: {rates}, {answered}",
        f"{'milliseconds':<32} {'requests':>9} {'mean':>9} {'p50':>9} {'p90':>9} {'p95':>9} {'p99':>9}   95 % of p50",
    ]
    lines += _block("", document, document["requests"])
    for part in document["classes"] if len(document["classes"]) > 1 else ():
        lines += _block(part["name"], part, part["requests"])
    for title, key in (("cache", "by_cache"), ("tier", "by_tier"), ("", "by_kind"), ("", "by_turn")):
        parts = document[key]
        if len(parts) > 1 or (parts and key == "by_cache" and parts[0]["name"] != "bypass"):
            for part in parts:
                lines += _block(f"{title} {part['name']}".strip(), part, part["requests"], ("ttft", "e2e"))
    lines += _notes(document)
    return "\n".join(lines) + "\n"


def _notes(document: dict[str, Any]) -> list[str]:
    lines = []
    if document["goodput"] is not None:
        ends = document["goodput_ci95"]
        between = "" if ends is None else f" ({ends[0]:.1%} … {ends[1]:.1%})"
        lines.append(f"goodput {document['goodput']:.2%}{between}, {_figure(document['goodput_rps'], 2)} requests/s")
    if document["errors"]:
        kinds = ", ".join(f"{name} {count}" for name, count in document["outcomes"].items() if name != "done")
        lines.append(f"errors {document['errors']}: {kinds}")
    cut = document["steady"]
    if cut["settled"]:
        lines.append(
            f"steady from {cut['from_s']:.1f} to {cut['to_s']:.1f} s: {_figure(cut['throughput_rps'], 2)} requests/s, "
            f"{_figure(cut['throughput_tok_s'], 1)} tokens/s, TTFT p50 {_ms(cut['ttft']['p50'])}, "
            f"TPOT p50 {_ms(cut['tpot']['p50'])}, E2E p50 {_ms(cut['e2e']['p50'])} ms"
        )
    else:
        lines.append("no steady state found: too short, overloaded, or drifting")
    late, ratio = document["lateness"], document["littles_law_ratio"]
    lines.append(
        f"sent late: p99 {_ms(late['p99_s'])} ms, {late['late_share']:.2%} over 10 ms; Little's law "
        f"{_figure(ratio, 3)}; tokens from {document['tokens']['source']}"
    )
    lines += [f"INVALID: {reason}" for reason in document["invalid_because"]]
    return lines


def _block(
    name: str, part: dict[str, Any], requests: int, wanted: tuple[str, ...] = ("ttft", "tpot", "itl", "e2e")
) -> list[str]:
    lines = []
    for metric, title in _METRICS:
        found = part[metric]
        if metric not in wanted or found["mean"] is None:
            continue
        figures = " ".join(f"{_ms(found[key]):>9}" for key in ("mean", "p50", "p90", "p95", "p99"))
        ends = (found["ci95"] or {}).get("p50")
        interval = "" if ends is None else f"{_ms(ends[0])} … {_ms(ends[1])}"
        label = f"{name}: {title}" if name else title
        lines.append(f"{label[:32]:<32} {requests:>9} {figures}   {interval}".rstrip())
    return lines


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.2f}"


def _figure(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
