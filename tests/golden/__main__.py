"""Writes the golden files anew: what `forebay deploy render` prints for each of the reference layouts.

python -m tests.golden
"""

from tests.golden.layouts import LAYOUTS, rendered

for layout in LAYOUTS:
    for path, text in rendered(layout).items():
        path.write_text(text, encoding="utf-8")
