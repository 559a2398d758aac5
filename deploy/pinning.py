"""Which machines an engine may take, on a cluster whose machines are made for one replica group each.

A chart makes pods of the size of an engine. Without names, Ray would put the engine of one GPU on the pod with four,
and the engine of four would find no pod for ever. So each pod offers a resource with the name of its group, and with
FOREBAY_PIN_GROUPS=1 in the cluster's environment the bundles of an engine ask for it.
"""

import os
import re
from collections.abc import Mapping

from core.config import Tier
from deploy.groups import Group

VARIABLE = "FOREBAY_PIN_GROUPS"


def resource(tier: Tier, group: Group) -> str:
    """Name of the group's resource, such as forebay-engine-Qwen-Qwen3-4B: a unit for each GPU."""
    return f"forebay-{group.role}-{re.sub('[^A-Za-z0-9]+', '-', tier.model)}"


def bundle(tier: Tier, group: Group, environ: Mapping[str, str] = os.environ) -> dict[str, int]:
    """What one GPU's bundle of the group asks for."""
    return {"GPU": 1, resource(tier, group): 1} if environ.get(VARIABLE) == "1" else {"GPU": 1}
