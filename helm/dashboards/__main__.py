"""Writes every dashboard: `python -m helm.dashboards [FOLDER]`. A test fails where the files are not what it writes."""

import sys
from pathlib import Path

from helm.dashboards import BOARDS
from helm.dashboards.grafana import rendered

FOLDER = Path(__file__).resolve().parents[1] / "forebay/files/dashboards"


def main() -> int:
    """Write the files; what else lies in the folder is removed."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.json"):
        old.unlink()
    for board in BOARDS:
        (folder / f"{board.name}.json").write_text(rendered(board), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
