"""The table of every set, on made-up files with the fixed names, so that the command itself is known to work."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bench.router_quality import DEMANDS, SETS, Demand
from router.evaluate import measure
from router.labels import Labelled

ROOT = Path(__file__).resolve().parents[3]


def test_every_set_has_a_demand_and_an_aim_that_is_no_less() -> None:
    assert set(SETS) < set(DEMANDS)
    for must, aim in DEMANDS.values():
        assert (aim.apgr or 1) >= (must.apgr or 0)
        assert (aim.cpt50 or 0) <= (must.cpt50 or 1)


def test_a_demand_is_met_by_all_its_figures() -> None:
    rows = [Labelled(str(n), float(n % 2), 1.0, "") for n in range(40)]
    perfect = measure(rows, np.array([1.0 - n % 2 for n in range(40)]), np.arange(40.0), resamples=20)
    assert Demand(0.7, over_length=0.01, cpt50=0.3).met(perfect)
    assert not Demand(0.8).met(perfect)
    assert not Demand(cpt50=0.1).met(perfect)


@pytest.mark.embedder
def test_rows_that_were_not_trained_on_are_scored_by_the_shipped_classifier(tmp_path: Path) -> None:
    folder = tmp_path / "router"
    folder.mkdir()
    words = ("Prove that the set number {} is compact.", "What colour is bus number {}?")
    rows = [{"prompt": words[n % 2].format(n), "weak": float(n % 2), "strong": 1.0} for n in range(60)]
    with gzip.open(folder / "routellm_mmlu.jsonl.gz", "wt", encoding="utf-8") as out:
        out.write("".join(json.dumps(row) + "\n" for row in rows))
    done = subprocess.run(
        [sys.executable, "-m", "bench.router_quality", "--json", "--report", str(tmp_path / "report")],
        cwd=ROOT,
        env={**os.environ, "FOREBAY_DATA": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=110,
    )
    [line] = json.loads(done.stdout)["sets"]
    assert (line["set"], line["scored"], line["rows"]) == ("routellm_mmlu", "unseen", 60)
    assert line["apgr"] > 0.7
    assert (tmp_path / "report" / "routellm_mmlu unseen.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "report" / "router_quality.json").exists()
