"""The one way in which this package compiles functions to machine code."""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import njit
from numba.core.caching import FunctionCache

F = TypeVar("F", bound=Callable[..., object])


def compiled(function: F) -> F:
    """The function, compiled at its first call for the types of its arguments.

    The machine code is kept beside the source, or in numba's own folder of the user where the source cannot be written
    to, so only the first process of an installation waits for the compiler. Floating point is exact (no reordering):
    the same input gives the same bytes.
    """
    dispatcher = njit(function)
    # Where no folder can be written to, every process compiles for itself.
    with suppress(RuntimeError):
        # What `cache=True` does, with a key that knows the functions it calls too.
        dispatcher._cache = _Cache(function)  # noqa: SLF001 - numba has no public way to say what a function depends on
    return cast("F", dispatcher)


def aside(function: F) -> F:
    """A piece of a compiled function, called from compiled functions only: nothing of Python is wrapped around it."""
    return cast("F", njit(function, no_cpython_wrapper=True, no_cfunc_wrapper=True))


class _Cache(FunctionCache):  # type: ignore[misc]  # numba ships without types
    """Numba's cache on disk, whose entries also die when another file in the function's folder changes."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__(function)
        self._folder = Path(function.__code__.co_filename).parent

    def _index_key(self, *arguments: Any) -> tuple[object, ...]:
        digest = hashlib.sha256()
        for path in sorted(self._folder.glob("*.py")):
            digest.update(path.read_bytes())
        return (*super()._index_key(*arguments), digest.hexdigest())
