"""The one configuration document: `load` it, `validate` it, or print its `schema`."""

from core.config.load import load, resolve_secret, schema, store_address, validate
from core.config.records import TIER_NAMES, Config, Tier, TierName

__all__ = ["TIER_NAMES", "Config", "Tier", "TierName", "load", "resolve_secret", "schema", "store_address", "validate"]
