"""How well the measure behind `forebay_cache_shadow_total` tells statements that say the same from those that do not.

    FOREBAY_DATA=DIR python -m bench.answer_agreement [--vectors DIR] [--sample N]

DIR/cache holds labelled pairs of sentences. There are no public pairs of answers with such labels; statements are the
nearest thing. `missed` is the share of pairs that say the same and are counted as different, `false` that of different
pairs counted as same; beside the cut that is used, others.
"""

import argparse
import os
import random
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.cache_trust import StoredVectors
from cache.agreement import SIMILAR, by_rule, by_similarity, cosine
from cache.evaluate import read_pairs
from cache.guard.lexicon import lexicon
from core.embedder import Encoder, SentenceTransformerEncoder, Vector

SETS = ("msrp", "sick", "stsb_test", "paws_en", "semantoneg", "twitter_url")
CUTS = (0.70, 0.75, 0.80, 0.85, 0.90)


def rates(rows: list[tuple[str, str, float, bool]], cut: float) -> tuple[float, float]:
    """The shares missed and false of (text, text, cosine, same) rows with this cut."""
    found = [((by_rule(a, b, lexicon()) or by_similarity(near, cut)).same, label) for a, b, near, label in rows]
    same, different = [said for said, label in found if label], [said for said, label in found if not label]
    return 1 - sum(same) / max(1, len(same)), sum(different) / max(1, len(different))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.answer_agreement", description=__doc__)
    parser.add_argument("--vectors", type=Path, help="folder that keeps the embeddings between runs")
    parser.add_argument("--sample", type=int, default=1000, help="at most this many pairs of each set, by a fixed seed")
    chosen = parser.parse_args()
    if "FOREBAY_DATA" not in os.environ:
        parser.error("FOREBAY_DATA must name the folder that holds cache/*.jsonl.gz")
    encoder: Encoder = SentenceTransformerEncoder()
    if chosen.vectors:
        encoder = StoredVectors(encoder, chosen.vectors)
    table = Table(title=f"missed / false; in use: {SIMILAR}")
    for column in ("set", "pairs", *map(str, CUTS)):
        table.add_column(column, justify="left" if column == "set" else "right")
    for name in SETS:
        pairs = read_pairs(Path(os.environ["FOREBAY_DATA"]) / "cache" / f"{name}.jsonl.gz")
        pairs = random.Random(0).sample(pairs, min(chosen.sample, len(pairs)))
        texts = sorted({side for pair in pairs for side in (str(pair.a), str(pair.b))}, key=lambda one: (len(one), one))
        vectors: dict[str, Vector] = {}
        for at in range(0, len(texts), 256):
            part = texts[at : at + 256]
            vectors |= {text: found.vector for text, found in zip(part, encoder.encode(part), strict=True)}
        rows = [
            (str(pair.a), str(pair.b), cosine(vectors[str(pair.a)], vectors[str(pair.b)]), pair.same) for pair in pairs
        ]
        cells = ["{:.2f} / {:.2f}".format(*rates(rows, cut)) for cut in CUTS]
        table.add_row(name, str(len(rows)), *cells)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
