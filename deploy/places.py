"""Where Forebay keeps files of its own, by the XDG base directory rules: the caches and the state of a running `up`."""

import os
from collections.abc import Mapping
from pathlib import Path


def cache_home(environ: Mapping[str, str] = os.environ) -> Path:
    """What can be made again at any time: `$XDG_CACHE_HOME/forebay`, else `~/.cache/forebay`. Not created here."""
    return _home("XDG_CACHE_HOME", ".cache", environ)


def state_home(environ: Mapping[str, str] = os.environ) -> Path:
    """What a running `up` leaves for `down`, and its logs: `$XDG_STATE_HOME/forebay`, else `~/.local/state/forebay`."""
    return _home("XDG_STATE_HOME", ".local/state", environ)


def _home(variable: str, default: str, environ: Mapping[str, str]) -> Path:
    # The specification has relative paths ignored.
    given = Path(environ.get(variable, ""))
    base = given if given.is_absolute() else Path.home() / default
    return base / "forebay"
