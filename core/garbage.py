"""How often Python looks for cyclic garbage in a process that serves."""

import gc

# Objects made between two collections of the youngest, and how many collections of one generation make one of the next.
YOUNG, MIDDLE, OLD = 10_000, 20, 50


def settle() -> None:
    """What lives as long as the process is looked at no more: a collection of everything would stop it for long.

    Called once what a process needs has been loaded.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)
