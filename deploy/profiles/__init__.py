"""Complete configuration documents for `forebay up` without a file of one's own: one per kind of machine."""

from importlib.resources import files

from pydantic import JsonValue

from core.config.load import parse_yaml
from deploy.device import Device


def profile(device: Device) -> dict[str, JsonValue]:
    """The document for a machine with that device."""
    name = f"{device}.yaml"
    document = parse_yaml(files(__name__).joinpath(name).read_text(encoding="utf-8"), name)
    if not isinstance(document, dict):
        raise TypeError(f"{name} is not a mapping")
    return document
