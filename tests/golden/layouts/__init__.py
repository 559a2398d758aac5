"""The reference layouts: configurations, what they are rendered to, and the GPUs that they take."""

from pathlib import Path
from typing import Any

from core.config import validate
from core.config.load import Document, read_document
from deploy.render import deployments, serve_config
from forebay.commands.deploy import plain_yaml

# GPUs with every replica group at its most.
LAYOUTS = {"one-gpu": 1, "eight-gpus": 8, "apart": 8, "two-nodes": 16}

_HERE = Path(__file__).parent


def document(layout: str) -> Document:
    """The configuration of a layout."""
    return read_document(_HERE / f"{layout}.yaml")


def groups(layout: str) -> list[Any]:
    """Its replica groups, as `forebay deploy render --engines` has them."""
    return list(deployments(validate(document(layout)), "gpu"))


def rendered(layout: str) -> dict[Path, str]:
    """The golden files of a layout and what belongs in them."""
    golden = _HERE.parent
    return {
        golden / f"{layout}.serve.yaml": plain_yaml(serve_config(document(layout))),
        golden / f"{layout}.engines.yaml": plain_yaml(groups(layout)),
    }
