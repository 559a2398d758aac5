"""What Ray Serve builds a tier from: `import_path: deploy.app:build`, one application per tier.

applications:
  - name: small
    route_prefix: /small
    import_path: deploy.app:build
    args: {tier: small, config: {…the configuration document…}}
"""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydantic import JsonValue

from core.config import TIER_NAMES, validate
from core.errors import ConfigError, Problem
from deploy.device import engine_device
from deploy.engine import check_engines
from deploy.tiers import application, is_packaged
from deploy.weights import ensure

if TYPE_CHECKING:
    from ray.serve import Application

logger = logging.getLogger(__name__)


def build(args: dict[str, JsonValue]) -> "Application":
    """The application of `args["tier"]` in the document `args["config"]`.

    Raises ConfigError for another tier name, a bad document, or an engine argument that vLLM does not have.
    """
    unknown = sorted(set(args) - {"tier", "config"})
    if unknown:
        raise ConfigError([Problem(name, "unknown argument; legal arguments: tier, config") for name in unknown])
    name, document = args.get("tier"), args.get("config")
    if not isinstance(document, Mapping):
        raise ConfigError([Problem("config", "missing; give the configuration document")])
    config = validate(document)
    tiers = dict(config.tiers.items())
    legal = ", ".join(tiers)
    if name not in TIER_NAMES:
        given = "missing" if name is None else f"{name!r} is not legal"
        raise ConfigError([Problem("tier", f"{given}; legal: {legal}")])
    if name not in tiers:
        raise ConfigError([Problem("tier", f"{name!r} is not configured; configured: {legal}")])
    device = engine_device() or "gpu"
    problems = check_engines(config, device)
    if problems:
        raise ConfigError(problems)
    tier = tiers[name]
    source = str(ensure(logger.info)) if is_packaged(tier) else None
    return application(tier, device, source)
