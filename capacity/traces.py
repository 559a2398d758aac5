"""Recorded requests: our own CSV, and those of Azure, BurstGPT and Mooncake; `.gz` of each.

| schema | columns | times |
|---|---|---|
| own | `arrived_s,prompt_tokens,output_tokens[,hash_ids]` | seconds |
| Azure | `TIMESTAMP,ContextTokens,GeneratedTokens` | date and time |
| BurstGPT | `Timestamp`, `Request tokens`, `Response tokens` | seconds |
| Mooncake (JSON lines) | `timestamp`, `input_length`, `output_length`, `hash_ids` | milliseconds |

The first request arrives at 0. A row without prompt or answer (BurstGPT keeps its failures so) is left out and counted.
"""

import csv
import gzip
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson

from capacity.workload import PrefixBlocks, Requests, plain
from core.errors import ConfigError, Problem

# Mooncake hashes prompts in blocks of this many tokens.
MOONCAKE_BLOCK = 512


@dataclass(frozen=True)
class Trace:
    """The requests of a file, and how many rows held none."""

    requests: Requests
    skipped: int


@dataclass(frozen=True)
class _Schema:
    name: str
    time: str
    prompt: str
    output: str
    seconds: Callable[[str], float]
    blocks: str | None = None


def _number(text: str) -> float:
    return float(text)


def _instant(text: str) -> float:
    # Azure writes seven digits of a second, and in some files a zone; numpy reads nanoseconds and no zone.
    stamp = text.strip().removesuffix("Z").removesuffix("+00:00").replace(" ", "T")
    return (
        float(np.datetime64(stamp, "ns").astype(np.int64)) / 1e9
        if "." in stamp
        else float(np.datetime64(stamp, "s").astype(np.int64))
    )


_CSV = (
    _Schema("own", "arrived_s", "prompt_tokens", "output_tokens", _number, "hash_ids"),
    _Schema("Azure", "TIMESTAMP", "ContextTokens", "GeneratedTokens", _instant),
    _Schema("BurstGPT", "Timestamp", "Request tokens", "Response tokens", _number),
)

Row = tuple[float, int, int, Sequence[int]]


def read_trace(path: Path) -> Trace:
    """The requests of a trace file, whatever its schema. Raises ConfigError that names the file, line and column."""
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError) as error:
        raise ConfigError([Problem("trace", f"{path} cannot be read: {error}")]) from error
    name = path.name.removesuffix(".gz")
    rows = _json_rows(path, data) if name.endswith((".jsonl", ".json")) else _csv_rows(path, data)
    times: list[float] = []
    prompts: list[int] = []
    outputs: list[int] = []
    blocks: list[Sequence[int]] = []
    skipped = 0
    for time, prompt, output, ids in rows:
        if prompt < 1 or output < 1:
            skipped += 1
            continue
        times.append(time)
        prompts.append(prompt)
        outputs.append(output)
        blocks.append(ids)
    if not times:
        raise ConfigError([Problem("trace", f"{path} holds no requests")])
    arrived = np.array(times)
    order = np.argsort(arrived, kind="stable")
    requests = plain(
        arrived[order] - arrived.min(),
        np.array(prompts, dtype=np.int32)[order],
        np.array(outputs, dtype=np.int32)[order],
        _prefix([blocks[place] for place in order]),
    )
    return Trace(requests, skipped)


def _csv_rows(path: Path, data: bytes) -> Iterator[Row]:
    reader = csv.reader(io.StringIO(data.decode("utf-8-sig")))
    header = [name.strip() for name in next(reader, [])]
    schema = next((one for one in _CSV if {one.time, one.prompt, one.output} <= set(header)), None)
    if schema is None:
        legal = "; ".join(f"{one.name}: {one.time}, {one.prompt}, {one.output}" for one in _CSV)
        raise ConfigError([Problem("trace", f"{path} has the columns {', '.join(header)}; legal are {legal}")])
    time, prompt, output = (header.index(name) for name in (schema.time, schema.prompt, schema.output))
    ids = header.index(schema.blocks) if schema.blocks in header else None
    for line, row in enumerate(reader, start=2):
        if not row:
            continue
        try:
            found = [int(one) for one in row[ids].split()] if ids is not None else []
            yield schema.seconds(row[time]), int(float(row[prompt])), int(float(row[output])), found
        except (ValueError, IndexError, OverflowError) as error:
            raise ConfigError([Problem("trace", f"{path}:{line}: {error}")]) from error


def _json_rows(path: Path, data: bytes) -> Iterator[Row]:
    for line, text in enumerate(data.splitlines(), start=1):
        if not text.strip():
            continue
        try:
            row = orjson.loads(text)
            yield (
                float(row["timestamp"]) / 1000,
                int(row["input_length"]),
                int(row["output_length"]),
                row.get("hash_ids", []),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                [
                    Problem(
                        "trace", f"{path}:{line}: {error!r}; legal are timestamp, input_length, output_length, hash_ids"
                    )
                ]
            ) from error


def _prefix(blocks: Sequence[Sequence[int]]) -> PrefixBlocks | None:
    lengths = [len(one) for one in blocks]
    if not any(lengths):
        return None
    flat = np.fromiter((one for ids in blocks for one in ids), dtype=np.int64, count=sum(lengths))
    distinct, ids = np.unique(flat, return_inverse=True)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return PrefixBlocks(offsets, ids.astype(np.int32), MOONCAKE_BLOCK, len(distinct))
