"""A property that is worked out when it is first read."""

from collections.abc import Callable
from typing import Generic, TypeVar, overload

Owner = TypeVar("Owner")
Value = TypeVar("Value")


class once(Generic[Owner, Value]):  # noqa: N801  # used as a decorator, like property
    """As functools.cached_property, without its lock, which costs more than most of what it guards here.

    For objects of one thread whose class has no slots.
    """

    def __init__(self, make: Callable[[Owner], Value]) -> None:
        self._make = make
        self._name = make.__name__
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, owner: None, kind: type[Owner]) -> "once[Owner, Value]": ...

    @overload
    def __get__(self, owner: Owner, kind: type[Owner]) -> Value: ...

    def __get__(self, owner: Owner | None, kind: type[Owner]) -> "once[Owner, Value] | Value":
        if owner is None:
            return self
        value = owner.__dict__[self._name] = self._make(owner)
        return value
