"""`python -m bench.chart`: see the package."""

import argparse
import json
import sys
from pathlib import Path

from bench.chart import __doc__ as description
from bench.chart.pages import readme, values_yaml
from bench.chart.schema import values_schema

CHART = Path(__file__).resolve().parents[2] / "helm" / "forebay"


def files() -> dict[Path, str]:
    """Every file that is written, and its text."""
    page = CHART / "README.md"
    return {
        CHART / "values.yaml": values_yaml(),
        CHART / "values.schema.json": json.dumps(values_schema(), indent=1, ensure_ascii=False) + "\n",
        page: readme(page.read_text(encoding="utf-8")),
    }


def main() -> int:
    """Exit code 0, or 1 where --check finds another text."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 where a file differs")
    given = parser.parse_args()
    differing = [path for path, text in files().items() if not path.is_file() or path.read_text("utf-8") != text]
    for path in differing:
        if given.check:
            print(f"differs: {path.relative_to(CHART.parents[1])}; run: python -m bench.chart", file=sys.stderr)
        else:
            path.write_text(files()[path], encoding="utf-8")
            print(f"written: {path.relative_to(CHART.parents[1])}")
    return int(given.check and bool(differing))


if __name__ == "__main__":
    sys.exit(main())
