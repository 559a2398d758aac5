"""Step times from data sheets against published measurements: how wide the interval must be, and that it holds.

    FOREBAY_DATA=DIR python -m bench.capacity_cross_gpu [--fit] [--json] [--verbose]

Rows come from every table of DIR/capacity that measures a model on a GPU: `trtllm*`, `llmviewer*` (TensorRT-LLM),
`vllm_ci*`, `blis*`, `infperf*` (vLLM), `nim*`, `splitwise*` (an engine without CUDA graphs). For each device, the
profile is fitted on all rows of other devices and estimates the rows of this one; --fit prints profiles fitted on all.
The shipped profiles must cover 80 % of all rows with a median upper/lower ratio of at most 2; exit code 1 otherwise.
"""

import argparse
import csv
import json
import math
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from capacity.devices import find_device
from capacity.roofline import PROFILES, Profile, Roofline, Shape

Row = dict[str, str]
COVERED, RATIO = 0.80, 2.0
# Where the search begins, and how far (as a standard deviation of the logarithm) it strays without evidence.
PRIORS: dict[str, tuple[float, float]] = {
    "memory": (0.8, 0.15),
    "cache": (0.7, 0.3),
    "compute16": (0.6, 0.2),
    "compute8": (0.5, 0.3),
    "step_s": (2e-3, 0.7),
    "layer_s": (3e-5, 1.0),
    "sequence_s": (2e-5, 1.0),
    "reduce_s": (1.5e-5, 0.7),
}


PARTS = ("memory", "cache", "compute16", "compute8")


@dataclass(frozen=True)
class Measured:
    """One published number, and how an estimate of it is made."""

    table: str
    name: str
    profile: str
    gpu: str
    value: float
    estimate: Callable[[Profile], float]


def shapes(rows: Sequence[Row]) -> dict[str, Shape]:
    """Models of an architecture table by their plain name."""
    found = {}
    for row in rows:
        active = float(row["params"])
        experts, chosen = 0, 0
        words = row["attn"].split()
        if "active" in words:
            active = float(words[words.index("active") + 1].rstrip('"'))
            pattern = next((word for word in words if "x" in word and word[0].isdigit()), "")
            experts = int(pattern.split("x", 1)[0]) if pattern else 256
            chosen = int(next((word[3:] for word in words if word.startswith("top")), "8"))
        found[plain(row["model"])] = Shape(
            int(row["layers"]),
            int(row["hidden"]),
            int(row["q_heads"]) * (int(row["head_dim"]) or 192),
            float(row["params"]),
            active,
            float(row["kv_bytes_per_token_fp16"]) / 2,
            experts,
            chosen,
        )
    return found


def plain(name: str) -> str:
    """A model's name without what people write differently."""
    words = (
        name.rsplit("/", 1)[-1].lower().replace("_", "-").replace(" ", "-").replace("-hf", "").replace("-instruct", "")
    )
    return words.replace("llama3", "llama-3").replace("llama2", "llama-2").replace("meta-", "")


def shape_for(name: str, known: dict[str, Shape]) -> Shape | None:
    """The shape of a model as a table names it; releases of one size share a shape."""
    wanted = plain(name)
    for candidate in (wanted, wanted.replace("llama-3-", "llama-3.1-").replace("llama-3.3-", "llama-3.1-")):
        if candidate in known:
            return known[candidate]
    if wanted.startswith("llama-") and wanted.count("-") == 1:
        return known.get(wanted.replace("llama-", "llama-2-"))
    return next((shape for key, shape in known.items() if wanted.startswith(key)), None)


class Tables:
    """The tables of a folder as measured rows."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._shapes = shapes(self._read(folder / "model_arch.csv"))

    @staticmethod
    def _read(path: Path) -> list[Row]:
        with path.open(encoding="utf-8") as lines:
            return list(csv.DictReader(lines))

    def _rows(self, pattern: str) -> Iterator[tuple[str, Row]]:
        for path in sorted(self._folder.glob(pattern)):
            yield from ((path.stem, row) for row in self._read(path))

    def all(self) -> list[Measured]:
        """Every row whose model and device are known."""
        makers = (self._trtllm, self._llmviewer, self._vllm, self._blis, self._infperf, self._nim, self._splitwise)
        return [row for make in makers for row in make()]

    def _roofline(self, model: str, gpu: str, precision: str, tp: str | int) -> Callable[[Profile], Roofline] | None:
        shape = shape_for(model, self._shapes)
        if shape is None:
            return None
        if not _known(gpu):
            return None
        bits = 8.0 if precision in ("fp8", "int8") else 16.0
        device = find_device(gpu)
        return lambda profile: Roofline(shape, device, profile, bits, bits / 8, int(tp))

    def _trtllm(self) -> Iterator[Measured]:
        for table, row in self._rows("trtllm*.csv"):
            line = self._roofline(row["model"], row["gpu"], row["precision"], row["tp"])
            if line is None:
                continue
            isl = float(row["isl"])
            name = f"{row['model']} {row['gpu']} {row['precision']} tp{row['tp']} {row.get('batch', '')} {isl:.0f}"
            if "first_token_ms" in row:
                yield Measured(
                    table, name, "trtllm", row["gpu"], 1e-3 * float(row["first_token_ms"]), _first(line, isl)
                )
                continue
            osl = float(row["osl"])
            name += f"/{osl:.0f}"
            if "out_tok_s_per_gpu" in row:
                made = _static(line, float(row["batch"]), isl, osl, per_gpu=True)
                yield Measured(table, name, "trtllm", row["gpu"], float(row["out_tok_s_per_gpu"]), made)
            else:
                made = _fullest(line, isl, osl)
                yield Measured(table, name, "trtllm", row["gpu"], float(row["total_out_tok_s"]), made)

    def _llmviewer(self) -> Iterator[Measured]:
        for table, row in self._rows("llmviewer*.csv"):
            line = self._roofline(row["model"], "A100", "fp16", 1)
            if line is not None:
                made = _static(line, float(row["batch"]), float(row["isl"]), float(row["osl"]), per_gpu=True)
                name = f"{row['model']} A100 {row['batch']} {row['isl']}/{row['osl']}"
                yield Measured(table, name, "trtllm", "A100", float(row["measured_trtllm_a100_tok_s"]), made)

    def _vllm(self) -> Iterator[Measured]:
        for table, row in self._rows("vllm_ci*.csv"):
            line = self._roofline(row["model"], row["gpu"], "fp16", row["tp"])
            if line is not None:
                latency = float(row["latency_bs8_in32_out128_ms"]) / 1e3
                made = _static(line, 8, 32, 128)
                name = f"{row['model']} {row['gpu']} tp{row['tp']}"
                yield Measured(table, f"{name} latency", "vllm", row["gpu"], 8 * 128 / latency, made)

    def _blis(self) -> Iterator[Measured]:
        for table, row in self._rows("blis*.csv"):
            line = self._roofline(row["model"], row["gpu"], "fp16", row["tp"])
            if line is None:
                continue
            rates = [float(part.split(" rps", 1)[0]) for part in row["load"].split("then ")]
            made = _open(
                line, statistics.mean(rates), float(row["first_turn_prompt_tokens"]), float(row["output_tokens"])
            )
            yield Measured(
                table, f"{row['model']} tp{row['tp']}", "vllm", row["gpu"], float(row["tpot_from_e2e_ms"]) / 1e3, made
            )

    def _infperf(self) -> Iterator[Measured]:
        for table, row in self._rows("infperf*.csv"):
            line = self._roofline(row["model"], row["gpu"], "fp16", 1)
            # Above what it can serve, the batch is the limit; the rate says nothing.
            if line is None or float(row["achieved_rate"]) < 0.99 * float(row["requested_rate"]):
                continue
            made = _open(line, float(row["req_s"]), float(row["prompt_mean"]), float(row["output_mean"]))
            name = f"{row['model']} {float(row['requested_rate']):.0f}/s"
            yield Measured(table, name, "vllm", row["gpu"], 1e-3 * float(row["tpot_from_e2e_ms"]), made)

    def _nim(self) -> Iterator[Measured]:
        for table, row in self._rows("nim*.csv"):
            gpu = row["gpu"].split("x", 1)[-1]
            line = self._roofline(row["model"], gpu, row["precision"], row["tp"])
            if line is not None:
                made = _closed(line, float(row["concurrency"]), float(row["isl"]), float(row["osl"]))
                name = f"{row['model']} {row['concurrency']}"
                yield Measured(table, name, "vllm", gpu, float(row["out_tok_s"]), made)

    def _splitwise(self) -> Iterator[Measured]:
        for table, row in self._rows("splitwise*.csv"):
            line = self._roofline(row["model"], row["hardware"], "fp16", row["tensor_parallel"])
            if line is None or row["suspect"] == "True":
                continue
            batch, prompt = float(row["batch_size"]), float(row["prompt_size"])
            context = batch * (prompt + float(row["token_size"]) / 2)
            name = f"{row['model']} {row['hardware']} tp{row['tensor_parallel']} {batch:.0f} x {prompt:.0f}"
            gpu = row["hardware"]
            token = float(row["token_ms_median"]) / 1e3
            yield Measured(table, f"{name} token", "eager", gpu, token, _step(line, batch, context))
            if batch == 1:
                # Larger batches of prompts ran one after the other.
                prompt_s = float(row["prompt_ms_median"]) / 1e3
                yield Measured(table, f"{name} prompt", "eager", gpu, prompt_s, _first(line, prompt))


Line = Callable[[Profile], Roofline]


def _known(gpu: str) -> bool:
    try:
        find_device(gpu)
    except ValueError:
        return False
    return True


def _first(line: Line, prompt: float) -> Callable[[Profile], float]:
    return lambda profile: line(profile).prefill_s(prompt)


def _step(line: Line, batch: float, context: float) -> Callable[[Profile], float]:
    return lambda profile: line(profile).decode_s(batch, context)


def _static(line: Line, batch: float, isl: float, osl: float, *, per_gpu: bool = False) -> Callable[[Profile], float]:
    """Output tokens per second of one batch from its prompts to its last tokens."""

    def rate(profile: Profile) -> float:
        found = line(profile)
        seconds = found.prefill_s(isl, batch) + osl * found.decode_s(batch, batch * (isl + osl / 2))
        return batch * osl / seconds / (found.tensor_parallel if per_gpu else 1)

    return rate


def _fullest(line: Line, isl: float, osl: float) -> Callable[[Profile], float]:
    """Output tokens per second with as many sequences as the cache holds, at most 2,048 (the tables' engine limit)."""

    def rate(profile: Profile) -> float:
        found = line(profile)
        room = found.device.memory_bytes * 0.9 * found.tensor_parallel - found.shape.weights * found.weight_bits / 8
        batch = min(2048.0, room / (found.shape.kv_elements * found.cache_bytes * (isl + osl / 2)))
        return batch / found.token_s(batch, isl, osl)

    return rate


def _closed(line: Line, concurrency: float, isl: float, osl: float) -> Callable[[Profile], float]:
    return lambda profile: concurrency / line(profile).token_s(concurrency, isl, osl)


def _open(line: Line, rate: float, isl: float, osl: float) -> Callable[[Profile], float]:
    """Seconds per token at an arrival rate: sequences in the engine by Little's law, solved with their step."""

    def step(profile: Profile) -> float:
        found = line(profile)
        sequences = 1.0
        for _ in range(200):
            sequences += 0.3 * (min(max(rate * osl * found.token_s(sequences, isl, osl), 1.0), 4096.0) - sequences)
        return found.token_s(sequences, isl, osl)

    return step


def fit(rows: Sequence[Measured], name: str) -> Profile:
    """The profile with the least squared log errors, held to its priors where rows say nothing."""
    names = list(PRIORS)
    centre = np.log([PRIORS[part][0] for part in names])
    width = np.array([PRIORS[part][1] for part in names])
    # One wild row weighs no more than a few others.
    spread = 0.2

    def errors(logs: np.ndarray) -> np.ndarray:
        profile = _profile(name, logs)
        found = [math.log(row.estimate(profile) / row.value) / spread for row in rows]
        return np.array(found + ((logs - centre) / width).tolist())

    # No engine reaches more than the data sheet.
    most = np.where([part in PARTS for part in names], math.log(0.95), np.inf)
    done = least_squares(errors, centre, bounds=(-np.inf, most), loss="soft_l1", f_scale=1.5)
    return _profile(name, done.x)


def _profile(name: str, logs: np.ndarray) -> Profile:
    found = dict(zip(PRIORS, np.exp(logs).tolist(), strict=True))
    return Profile(name=name, interval=1.0, **found)


def log_errors(rows: Sequence[Measured], profile: Profile) -> list[float]:
    """Logarithms of estimate over measurement."""
    return [math.log(row.estimate(profile) / row.value) for row in rows]


def left_out(rows: Sequence[Measured], name: str) -> list[tuple[Measured, float]]:
    """Log errors of rows whose device (or, with one device, whose model) had no part in the fit."""
    devices = {row.gpu for row in rows}
    group: Callable[[Measured], str] = (lambda row: row.gpu) if len(devices) > 1 else (lambda row: row.name.split()[0])
    found: list[tuple[Measured, float]] = []
    for held in sorted({group(row) for row in rows}):
        others = [row for row in rows if group(row) != held] or list(rows)
        mine = [row for row in rows if group(row) == held]
        found += zip(mine, log_errors(mine, fit(others, name)), strict=True)
    return found


def covering(errors: Sequence[float], share: float = COVERED) -> float:
    """The factor that holds a share of the errors, with the correction for few of them."""
    ordered = sorted(abs(error) for error in errors)
    place = min(len(ordered) - 1, math.ceil((len(ordered) + 1) * share) - 1)
    return math.exp(ordered[place])


def main() -> int:
    """Print coverage by table; 1 where the interval does not hold or is too wide."""
    assert __doc__  # noqa: S101  # it is the help
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", action="store_true", help="fit again and print the profiles")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--verbose", action="store_true", help="every row")
    options = parser.parse_args()
    rows = Tables(Path(os.environ["FOREBAY_DATA"]) / "capacity").all()
    if options.fit:
        groups: dict[str, list[Measured]] = defaultdict(list)
        for row in rows:
            groups[row.profile].append(row)
        for name, found in groups.items():
            factor = covering([error for _, error in left_out(found, name)])
            print(replace(fit(found, name), interval=round(factor, 2)))
    tables: dict[str, list[tuple[bool, float, float]]] = defaultdict(list)
    for row in rows:
        profile = PROFILES[row.profile]
        error = math.log(row.estimate(profile) / row.value)
        inside = abs(error) <= math.log(profile.interval)
        tables[row.table].append((inside, error, profile.interval**2))
        if options.verbose:
            print(
                f"{'in' if inside else 'OUT':<4}{row.table:<44}{row.name:<52}{row.value:>10.4g}{math.exp(error):>8.2f}"
            )
    entries = [entry for found in tables.values() for entry in found]
    covered = sum(inside for inside, _, _ in entries) / len(entries)
    ratio = statistics.median(width for _, _, width in entries)
    lines = [
        {
            "table": table,
            "rows": len(found),
            "covered": sum(inside for inside, _, _ in found) / len(found),
            "median_error": math.exp(statistics.median(abs(error) for _, error, _ in found)) - 1,
        }
        for table, found in tables.items()
    ]
    result = {"rows": len(entries), "covered": covered, "median_ratio": ratio, "tables": lines}
    if options.json:
        print(json.dumps(result | {"profiles": {name: asdict(profile) for name, profile in PROFILES.items()}}))
    else:
        for line in lines:
            errors = f"{line['covered']:>5.0%} inside  median off by {line['median_error']:.0%}"
            print(f"{line['table']:<44}{line['rows']:>4} rows {errors}")
        print(f"{len(entries)} rows: {covered:.0%} inside, median upper/lower ratio {ratio:.2f}")
    return 0 if covered >= COVERED and ratio <= RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
