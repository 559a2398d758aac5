"""Every comparison in one run, and the table of the README from it: what `make bench` starts.

    python -m bench.whole [--rounds 5] [--peer 'NAME VERSION=COMMAND']... [--guidellm PATH] [--without NAME ...] \\
        [--trace F.csv] [--out build/bench] [--readme README.md]

Each measurement is a command of its own (`python -m bench.NAME --json`), run one after another so that none disturbs
another; its document is kept in `--out`, and the table is written from what lies there, so a measurement that is left
out keeps its last result. `overhead`: the gateway and its peers, pinned to cores, in turns. `load_accuracy`,
`load_peers`: is `forebay bench` right; `engine_peers`: `bench.load_peers` on a real engine. `live`: real engines
against each other. `foretold`: the simulator against an engine. Those with engines need the engines' environment, and
minutes. Exits with 1 where a measurement failed.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from bench.live import stack

NAMES = ("overhead", "load_accuracy", "load_peers", "engine_peers", "live", "foretold")
# Measurements that are another one's command with other options.
COMMANDS = {"engine_peers": "load_peers"}
BEGIN, END = "<!-- bench: written by make bench -->", "<!-- bench: end -->"
SOURCE, MODEL, SLOTS = "packaged:SmolLM2-135M-Instruct", "smollm2-135m", 8
# Requests per second and in all that the engine is asked by each tool: about half of what one thread can do.
ENGINE_RATE, ENGINE_REQUESTS = 0.4, 20
Row = tuple[str, str, str, str]
# Figures of `bench.overhead` for the table, and what they are.
OVERHEAD = {
    "uncached_rps_core": "relayed requests per second and core, cache off",
    "relay_rps_core": "the same with a cache that misses",
    "again_rps_core": "the same request again, an exact hit here",
    "chunk_cpu_us": "CPU per streamed chunk",
    "added_p50_ms": "time added to a request (p50, one at a time)",
    "added_ttft_ms": "time added to the first token, 16 streams",
}
LIVE = {
    "tok_s": "output tokens/s",
    "itl_p99": "ITL p99 of short requests",
    "long_ttft_p50": "TTFT p50 of long prompts",
    "e2e_p50": "E2E p50 of short requests",
    "ttft_p50": "TTFT p50",
    "tpot_p50": "TPOT p50",
}


def overhead(found: dict[str, Any]) -> Iterator[Row]:
    """Forebay over each peer, and its own hit over its own miss."""
    own = found["ci95"]["again_over_relay"]
    value = found["median"]["forebay"]["again_over_relay"]
    yield "an exact hit against its own miss, CPU", f"{value:.2f} times cheaper", between(own), _note(found)
    for peer, ratios in found["forebay_over"].items():
        for figure, what in OVERHEAD.items():
            ends = found["forebay_over_ci95"][peer][figure]
            # A ratio whose interval reaches below 0 is of differences that the noise swallows.
            told = ends is not None and ends[0] > 0
            figure_text = f"{ratios[figure]:.2f} x" if told else "cannot be told here"
            yield f"gateway over {peer}: {what}", figure_text, between(ends), _note(found)


def load_accuracy(found: dict[str, Any]) -> Iterator[Row]:
    """How far `forebay bench` is from the engine's log at worst."""
    for rate in dict.fromkeys(row["rate"] for row in found["rows"]):
        worst = max((row for row in found["rows"] if row["rate"] == rate), key=lambda row: float(row["off"]))
        off = f"{worst['off_ms']:+.2f} ms of {worst['logged_ms']:.1f}"
        what = f"`forebay bench` against the engine's own log, {rate} requests/s: the worst of p50 to p99"
        yield what, f"{worst['name']}: {off}", "-", f"{len(found['runs']) // 3} rounds"


def load_peers(found: dict[str, Any]) -> Iterator[Row]:
    """The same trace, measured by others."""
    for row in found["rows"]:
        name = f"{row['peer']} {found['versions'].get(row['peer'], '')}".strip()
        what = f"`forebay bench` against {name}, median {row['figure'].upper()} of the same trace"
        yield what, f"{row['difference']:+.1%}", between(row["ci95"], percent=True), _note(found)


def engine_peers(found: dict[str, Any]) -> Iterator[Row]:
    """The same on a real engine."""
    for what, figure, ends, note in load_peers(found):
        yield f"{what}, on vLLM", figure, ends, note


def live(found: dict[str, Any]) -> Iterator[Row]:
    """Real engines against each other."""
    for row in found["rows"]:
        what = f"{row['comparison']}: {row['b']} over {row['a']}, {LIVE[row['figure']]}"
        yield what, f"{row['ratio']:.2f} x", between(row["ci95"]), _note(found)


def foretold(found: dict[str, Any]) -> Iterator[Row]:
    """The simulator against an engine."""
    for row in found["rows"]:
        what = f"`forebay simulate` with the fit against `forebay bench`, {found['load']:.0%} load: {row['figure']}"
        each = " … ".join(f"{end:+.1%}" for end in (min(row["rounds"]), max(row["rounds"])))
        yield what, f"{row['off']:+.1%}", f"{each} (all rounds)", "bench fit, then the same trace"


READERS: dict[str, Callable[[dict[str, Any]], Iterator[Row]]] = {
    "overhead": overhead,
    "load_accuracy": load_accuracy,
    "load_peers": load_peers,
    "engine_peers": engine_peers,
    "live": live,
    "foretold": foretold,
}


def between(ends: Sequence[float] | None, *, percent: bool = False) -> str:
    """An interval as the table has it."""
    if ends is None:
        return "-"
    return " … ".join(f"{end:+.1%}" if percent else f"{end:.2f}" for end in ends)


def _note(found: dict[str, Any]) -> str:
    return f"{found['rounds']} rounds"


def table(folder: Path) -> str:
    """The table from the documents in a folder."""
    lines = ["| what | figure | 95 % | from |", "|---|---|---|---|"]
    for name in NAMES:
        path = folder / f"{name}.json"
        if path.is_file():
            for what, figure, ends, note in READERS[name](json.loads(path.read_text(encoding="utf-8"))):
                lines.append(f"| {what} | {figure} | {ends} | `bench.{COMMANDS.get(name, name)}`, {note} |")
    return "\n".join(lines)


def rewritten(text: str, made: str) -> str:
    """The README with this table between its marks. Raises ValueError where it has none."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"no place for the table: {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{made}\n\n{END}{after}"


def measured(name: str, words: Sequence[str], out: Path) -> bool:
    """Runs one measurement and keeps its document; whether there is one."""
    module = COMMANDS.get(name, name)
    print(f"bench.{module} {' '.join(words)}", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", f"bench.{module}", *words, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)  # noqa: S603 - our own
    try:
        found = cast("dict[str, Any]", json.loads(done.stdout))
    except json.JSONDecodeError:
        print(f"bench.{name} gave no result", file=sys.stderr)
        return False
    (out / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if done.returncode:
        print(f"bench.{name} missed what it demands; see {out / name}.json", file=sys.stderr)
    return done.returncode == 0


def everything(given: argparse.Namespace) -> bool:
    """Runs what is wanted; whether all of it came out as demanded."""
    rounds, good = ["--rounds", str(given.rounds)], True
    if "overhead" not in given.without:
        good &= measured("overhead", [*rounds, *(word for peer in given.peer for word in ("--peer", peer))], given.out)
    if "load_accuracy" not in given.without:
        good &= measured("load_accuracy", rounds, given.out)
    if "live" not in given.without:
        good &= measured("live", [*rounds, "--html", str(given.out / "live.html")], given.out)
    if given.trace is None:
        print("bench.load_peers and bench.foretold are left out: --trace names no trace", file=sys.stderr)
        return good
    peers = [*rounds, *(("--tokenizer", given.tokenizer) if given.tokenizer else ())]
    peers += ("--guidellm", given.guidellm) if given.guidellm else ()
    trace = ["--trace", str(given.trace)]
    if "load_peers" not in given.without:
        good &= measured("load_peers", [*peers, *trace], given.out)
    if not {"foretold", "engine_peers"} <= set(given.without):
        engine = {"max_num_seqs": SLOTS, "max_num_batched_tokens": 2048}
        tiers = {"small": {"model": MODEL, "source": SOURCE, "engine": engine}}
        with stack({"gateway": {"port": 0}, "cache": {"semantic": {"enabled": False}}, "tiers": tiers}) as state:
            at = ["--url", state["tiers"]["small"]["url"], "--model", MODEL, *trace]
            if "foretold" not in given.without:
                good &= measured("foretold", [*at, "--max-num-seqs", str(SLOTS)], given.out)
            if "engine_peers" not in given.without:
                load = ["--rate", str(ENGINE_RATE), "--requests", str(ENGINE_REQUESTS)]
                good &= measured("engine_peers", [*peers, *at, *load], given.out)
    return good


def main() -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.whole", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND", help="as of bench.overhead")
    parser.add_argument("--guidellm", metavar="PATH")
    parser.add_argument("--tokenizer", metavar="DIR", help="of bench.load_peers")
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--without", nargs="+", choices=NAMES, default=[])
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    parser.add_argument("--readme", type=Path, default=Path("README.md"))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    good = False
    try:
        good = everything(given)
    finally:
        # What was measured is told, whatever became of the rest.
        given.readme.write_text(rewritten(given.readme.read_text(encoding="utf-8"), table(given.out)), encoding="utf-8")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
