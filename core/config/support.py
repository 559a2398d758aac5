"""Keys whose place in the document is fixed but which this version cannot honour.

A setting that would silently do nothing is refused, with the value that is legal.
"""

from core.config.records import Config, Replicas
from core.errors import Problem


def unsupported(config: Config) -> list[Problem]:
    """Every setting that asks for something this version does not do."""
    checks: list[tuple[str, bool, str]] = []
    for name, tier in config.tiers.items():
        apart = tier.disaggregation
        if apart is not None:
            checks.append((f"tiers.{name}.replicas", tier.replicas != Replicas(), "{} (each group has its own)"))
    return [*_idle(config), *_uncounted(config)] + [
        Problem(path, f"not supported by this version; the only legal value is {legal}")
        for path, asked, legal in checks
        if asked
    ]


def _uncounted(config: Config) -> list[Problem]:
    """Limits that several processes would count apart, each up to the whole limit."""
    limited = [
        key.name
        for key in config.auth.keys
        if (key.requests_per_minute, key.tokens_per_minute, key.concurrency, key.monthly_budget) != (None,) * 4
    ]
    if config.gateway.workers == 1 or config.auth.store != "memory" or not limited:
        return []
    message = (
        f"{config.gateway.workers} workers count the limits of {limited[0]!r} apart in memory; legal with limits: "
    )
    return [Problem("auth.store", f"{message}redis://… (or gateway.workers: 1)")]


def _idle(config: Config) -> list[Problem]:
    """Settings that have no effect because of others."""
    semantic = config.cache.semantic
    judge = semantic.judge
    if judge is None:
        return []
    if judge not in dict(config.tiers.items()):
        return [Problem("cache.semantic.judge", f"the tier {judge} is not configured")]
    if not semantic.guard:
        return [Problem("cache.semantic.judge", "is asked where the guard is unsure, and cache.semantic.guard is off")]
    return []
