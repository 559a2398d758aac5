"""The dashboards are what their code writes, and every panel says what it shows, in which unit, and what red means."""

import json
import re
from pathlib import Path

import pytest
from grafana_foundation_sdk.models import units

from gateway.metrics import TABLE
from helm.dashboards import BOARDS
from helm.dashboards.__main__ import FOLDER
from helm.dashboards.grafana import rendered
from helm.dashboards.record import Board, Panel

PANELS = [pytest.param(panel, id=f"{board.name}: {panel.title}") for board in BOARDS for panel in board.panels]
MAX_CONFIGMAP = 256_000
# "short", "percentunit", "s": what the SDK has constants for.
UNITS = {value for name, value in vars(units).items() if not name.startswith("_") and isinstance(value, str)}


def test_the_files_are_what_the_code_writes() -> None:
    assert {path.name for path in FOLDER.glob("*.json")} == {f"{board.name}.json" for board in BOARDS}
    for board in BOARDS:
        assert (FOLDER / f"{board.name}.json").read_text(encoding="utf-8") == rendered(board), (
            f"{board.name} has drifted: python -m helm.dashboards"
        )


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_a_dashboard_is_whole(board: Board) -> None:
    text = (FOLDER / f"{board.name}.json").read_text(encoding="utf-8")
    assert len(text.encode()) < MAX_CONFIGMAP
    page = json.loads(text)
    assert (page["uid"], page["title"]) == (f"forebay-{board.name}", board.title)
    ids = [panel["id"] for panel in page["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in page["panels"]:
        place = panel["gridPos"]
        cells = {
            (place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"]) if place["w"] > 0
        }
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}"
            assert panel["fieldConfig"]["defaults"]["thresholds"]["steps"][1]["value"] is not None
            assert all(target["legendFormat"] and target["expr"].endswith("vector(0)") for target in panel["targets"])


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_explains_itself(panel: Panel) -> None:
    assert panel.unit in UNITS
    assert panel.about.endswith(".")
    assert panel.limit.means.endswith(".")
    assert panel.queries
    assert all('namespace=~"$namespace"' in query.expr for query in panel.queries)


def test_panels_ask_for_metrics_that_there_are() -> None:
    known = {spec.name for spec in TABLE}
    known |= {
        f"{spec.name}_{part}" for spec in TABLE if spec.kind == "histogram" for part in ("bucket", "count", "sum")
    }
    exprs = [query.expr for board in BOARDS for panel in board.panels for query in panel.queries]
    asked = {name for expr in exprs for name in re.findall(r"(?<!\w)forebay_\w+", expr)}
    assert asked <= known
    shown = {name.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum") for name in asked}
    unseen = {spec.name for spec in TABLE} - shown
    # Retries are seen in what failed before them.
    assert unseen == {"forebay_retries_total"}


def test_every_dashboard_has_its_picture_in_the_docs() -> None:
    page = Path(__file__).resolve().parents[2] / "docs/monitoring.md"
    text = page.read_text(encoding="utf-8")
    for board in BOARDS:
        picture = f"dashboards/{board.name}.png"
        assert f"({picture})" in text
        assert (page.parent / picture).read_bytes().startswith(b"\x89PNG")
