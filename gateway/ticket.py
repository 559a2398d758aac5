"""One request before a tier: who asks, how urgent it is, and what it is expected to cost."""

import asyncio
from dataclasses import dataclass, field

from gateway.auth import Priority


@dataclass(eq=False, slots=True)
class Ticket:
    """One request before a tier.

    `deadline`: monotonic second by which its first byte is due, None where the client set none. `weight`: its tenant's
    share. `cost`: tokens it is expected to take; `served`: those that it took, None while that is not known. `waited`:
    seconds in the queue.
    """

    tenant: str
    priority: Priority
    deadline: float | None = None
    weight: float = 1.0
    cost: float = 1.0
    served: float | None = None
    waited: float = 0.0
    turn: asyncio.Future[None] | None = field(default=None, repr=False)
