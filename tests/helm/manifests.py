"""Manifests against the schemas of a Kubernetes release, and of custom resources."""

import functools
import json
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
from referencing import Registry, Resource

VERSIONS = ("1.30", "1.33", "1.35", "1.37")
_CORE = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"
_CUSTOM = Path(__file__).parent / "crds" / "schema.tar.xz"
Manifest = Mapping[str, Any]


def faults(manifests: Iterable[Manifest], version: str) -> list[str]:
    """Every fault of the manifests in that release: kind, name, path and message."""
    return [fault for manifest in manifests for fault in _faults(manifest, version)]


def _faults(manifest: Manifest, version: str) -> Iterator[str]:
    kind, api = manifest.get("kind", "?"), manifest.get("apiVersion", "?")
    name = manifest.get("metadata", {}).get("name")
    validator = _validator(version, api, kind)
    if validator is None:
        yield f"{kind}/{name}: no schema for {api} {kind}"
        return
    for error in validator.iter_errors(manifest):
        yield f"{kind}/{name}: {'/'.join(map(str, error.absolute_path))}: {error.message[:200]}"


@functools.cache
def _validator(version: str, api: str, kind: str) -> Any:
    if (custom := custom_schemas().get(f"{kind.lower()}-{api.replace('/', '-')}")) is not None:
        return jsonschema.Draft7Validator(custom)
    folder, registry = _registry(version)
    short = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api)
    path = folder / f"{kind.lower()}-{short}.json"
    return jsonschema.Draft202012Validator(json.loads(path.read_text()), registry=registry) if path.exists() else None


@functools.cache
def _registry(version: str) -> tuple[Path, Any]:
    folder = _CORE / f"v{version}.0-local-strict"
    definitions = json.loads((folder / "_definitions.json").read_text())
    return folder, Resource.from_contents(definitions) @ Registry()


@functools.cache
def custom_schemas() -> dict[str, Any]:
    """Schemas of custom resources by kind, group and version."""
    with tarfile.open(_CUSTOM) as archive:
        return {
            Path(member.name).stem: json.load(file)
            for member in archive
            if member.name.endswith(".json") and (file := archive.extractfile(member)) is not None
        }
