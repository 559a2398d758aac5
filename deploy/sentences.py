"""Where an answer may end, in tokens."""

import json
from collections.abc import Sequence
from pathlib import Path

# As the tokenizer writes a line break (byte-level BPE).
_NEWLINE = "Ċ"
_ENDS = (".", "!", "?", '."', ".)", _NEWLINE)


def is_over(output: Sequence[int], limit: int, ends: frozenset[int], digits: frozenset[int]) -> bool:
    """Whether an answer of these tokens ends here: past `limit` with a sentence that ends, or past twice of it."""
    if len(output) < limit:
        return False
    # "1." begins an item, or is half of "1.5".
    sentence = output[-1] in ends and (len(output) < 2 or output[-2] not in digits)
    return sentence or len(output) >= 2 * limit


def sentence_ends(tokenizer: Path) -> tuple[frozenset[int], frozenset[int]]:
    """Ids of the tokens that end a sentence, and of those that end with a digit, from a tokenizer.json."""
    vocabulary: dict[str, int] = json.loads(tokenizer.read_text(encoding="utf-8"))["model"]["vocab"]
    ends = frozenset(index for token, index in vocabulary.items() if token.endswith(_ENDS))
    digits = frozenset(index for token, index in vocabulary.items() if token[-1:].isdigit())
    return ends, digits
