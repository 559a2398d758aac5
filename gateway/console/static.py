"""The page's files, as they are in the package: what is served is what is listed here, whatever else lies beside it."""

import hashlib
from collections.abc import Mapping
from importlib.resources import files
from typing import NamedTuple

KINDS = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


class Asset(NamedTuple):
    """One file. `tag`: changes with its content."""

    body: bytes
    kind: str
    tag: str


def assets() -> Mapping[str, Asset]:
    """Every file of the page by its name below /console."""
    found = {}
    for folder in ("page", "vendor"):
        for file in files("gateway.console").joinpath(folder).iterdir():
            kind = KINDS.get(file.name.rpartition(".")[2])
            if kind is None:
                continue
            body = file.read_bytes()
            found[file.name] = Asset(body, kind, f'"{hashlib.sha256(body).hexdigest()[:32]}"')
    return found
