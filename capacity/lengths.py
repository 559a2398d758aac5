"""Classes of requests by their lengths, where a workload names none of its own."""

import numpy as np
from numpy.typing import NDArray

# A prompt or answer of at least this many tokens is long.
LONG_PROMPT, LONG_OUTPUT = 512, 128
_WORDS = {False: "short", True: "long"}


def length_classes(
    prompt: NDArray[np.integer], output: NDArray[np.integer], bounds: tuple[int, int] = (LONG_PROMPT, LONG_OUTPUT)
) -> list[tuple[str, NDArray[np.bool_]]]:
    """Name and rows of the four classes, some of them perhaps empty; tokens per request in, `bounds` what is long."""
    prompts, outputs = prompt >= bounds[0], output >= bounds[1]
    return [
        (f"{_WORDS[p]} prompt, {_WORDS[o]} output", (prompts == p) & (outputs == o))
        for p in (False, True)
        for o in (False, True)
    ]
