"""Keys whose place in the document is fixed but which this version cannot honour.

A setting that would silently do nothing is refused, with the value that is legal.
"""

from core.config.records import Config
from core.errors import Problem


def unsupported(config: Config) -> list[Problem]:
    """Every setting that asks for something this version does not do."""
    semantic = config.cache.semantic
    checks = [
        ("gateway.workers", config.gateway.workers > 1, "1"),
        ("cache.semantic.judge", semantic.judge is not None, "null"),
    ]
    for name, tier in config.tiers.items():
        checks += [
            (f"tiers.{name}.disaggregation", tier.disaggregation is not None, "null"),
            (f"tiers.{name}.adapters", bool(tier.adapters), "{}"),
        ]
    return [
        Problem(path, f"not supported by this version; the only legal value is {legal}")
        for path, asked, legal in checks
        if asked
    ]
