"""How often Python looks for cyclic garbage in a process that serves."""

import gc

# Objects made between two collections of the youngest, and how many collections of one generation make one of the next.
# Requests that fail or are left leave cycles behind, and some of these grow old before they are seen: with the oldest
# looked at ten times less often, memory rose by 110 bytes per request in `bench.leaks`, and now by 14.
YOUNG, MIDDLE, OLD = 10_000, 10, 5


def settle() -> None:
    """What lives as long as the process is looked at no more: a collection of everything would stop it for long.

    Called once what a process needs has been loaded.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)
