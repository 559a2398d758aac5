import gzip
from pathlib import Path

import numpy as np
import pytest

from capacity.traces import read_trace
from core.errors import ConfigError

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,110,27
"""
ZONED = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:00.017335+00:00,2399,6
2024-05-10 00:00:01,12,6
"""
BURST = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,0,1087,Conversation log
118,GPT-4,417,276,693,Conversation log
"""
MOONCAKE = """{"timestamp": 3000, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2]}
{"timestamp": 0, "input_length": 7322, "output_length": 490, "hash_ids": [0, 14]}
"""


def write(path: Path, text: str) -> Path:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize(
    ("name", "text", "arrived", "prompt", "output"),
    [
        ("own.csv", "arrived_s,prompt_tokens,output_tokens\n4,3,2\n2.5,7,9\n", [0, 1.5], [7, 3], [9, 2]),
        ("azure.csv", AZURE, [0, 0.052], [4808, 110], [10, 27]),
        ("azure.csv.gz", ZONED, [0, 0.007405, 0.99007], [2162, 2399, 12], [5, 6, 6]),
        ("burst.csv", BURST, [0, 113], [472, 417], [18, 276]),
        ("mooncake.jsonl", MOONCAKE, [0, 3], [7322, 6758], [490, 500]),
    ],
)
def test_each_schema_is_read_in_order_of_arrival_from_0(
    tmp_path: Path, name: str, text: str, arrived: list[float], prompt: list[int], output: list[int]
) -> None:
    trace = read_trace(write(tmp_path / name, text))
    np.testing.assert_allclose(trace.requests.arrived, arrived, atol=2e-7)
    assert trace.requests.prompt.tolist() == prompt
    assert trace.requests.output.tolist() == output
    assert trace.skipped == text.count(",0,")


def test_prefix_blocks_follow_their_request(tmp_path: Path) -> None:
    prefix = read_trace(write(tmp_path / "mooncake.jsonl", MOONCAKE)).requests.prefix
    assert prefix is not None
    assert prefix.offsets.tolist() == [0, 2, 5]
    # The ids 0, 14, 0, 1, 2 in the order of arrival, numbered through.
    assert prefix.ids.tolist() == [0, 3, 0, 1, 2]
    assert (prefix.tokens, prefix.distinct) == (512, 4)


def test_rows_taken_from_a_trace_keep_their_blocks(tmp_path: Path) -> None:
    taken = read_trace(write(tmp_path / "mooncake.jsonl", MOONCAKE)).requests.take(np.array([1]))
    assert taken.prefix is not None
    assert taken.prefix.ids.tolist() == [0, 1, 2]
    assert taken.prefix.offsets.tolist() == [0, 3]


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("a.csv", "time,in,out\n1,2,3\n", "has the columns time, in, out"),
        ("a.csv", "arrived_s,prompt_tokens,output_tokens\n1,2,3\n1,x,3\n", "a.csv:3"),
        ("a.csv", "arrived_s,prompt_tokens,output_tokens\n", "holds no requests"),
        ("a.jsonl", '{"timestamp": 1}\n', "a.jsonl:1"),
        ("a.jsonl", "[1]\n", "a.jsonl:1"),
        ("a.csv.gz", None, "cannot be read"),
        ("absent.csv", None, "cannot be read"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, name: str, text: str | None, named: str) -> None:
    path = tmp_path / name
    if text is not None:
        write(path, text)
    elif name.endswith(".gz"):
        path.write_bytes(b"no gzip")
    with pytest.raises(ConfigError, match=named):
        read_trace(path)
