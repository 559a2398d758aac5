"""The order of a tier's queue: by priority, and within one priority fair between tenants by tokens served.

Fair is start-time fair queueing (Goyal, Vin, Cheng 1996) with tokens as the cost, as the virtual token counter of
"Fairness in Serving Large Language Models" (Sheng et al. 2024) does: every tenant has a virtual time that grows by the
tokens of its requests over its weight, the tenant that is furthest behind is next, and one that comes back from being
idle starts where the others are, so that it neither owes nor saves up. The cost is a forecast when a request is let in
and is put right with its usage when it ends.
"""

import math
from collections import OrderedDict
from heapq import heappop, heappush

from gateway.auth import PRIORITIES, Priority
from gateway.ticket import Ticket

# Beyond so many tenants, the half of those with nothing waiting that is furthest behind is forgotten: it owes least.
MAX_IDLE = 1000
# Weight of the newest request in the mean of its tenant's tokens.
SMOOTHING = 0.1


class Flow:
    """One tenant's tickets of one priority. `mean`: tokens of its requests; `version`: which heap entry is valid."""

    __slots__ = ("mean", "tag", "tickets", "version", "weight")

    def __init__(self, mean: float) -> None:
        self.mean = mean
        self.tag = 0.0
        self.weight = 1.0
        self.version = 0
        self.tickets: OrderedDict[int, Ticket] = OrderedDict()

    @property
    def load(self) -> float:
        """Waiting tickets over the tenant's weight."""
        return len(self.tickets) / self.weight

    @property
    def work(self) -> float:
        """Tokens that its waiting tickets will probably take."""
        return len(self.tickets) * self.mean


class Band:
    """The tickets of one priority."""

    def __init__(self) -> None:
        self.size = 0
        self.flows: dict[str, Flow] = {}
        self._heap: list[tuple[float, int, str, int]] = []
        self._now = 0.0
        self._entries = 0

    def add(self, ticket: Ticket) -> None:
        """To the end of its tenant's tickets."""
        flow = self._flow(ticket)
        if not flow.tickets:
            flow.tag = max(flow.tag, self._now)
            self._push(ticket.tenant, flow)
        flow.tickets[id(ticket)] = ticket
        self.size += 1

    def pop(self) -> Ticket:
        """The first ticket of the tenant that is furthest behind, which pays for it. There must be one."""
        while True:
            _, _, tenant, version = heappop(self._heap)
            flow = self.flows.get(tenant)
            if flow is None or version != flow.version or not flow.tickets:
                continue
            ticket = flow.tickets.popitem(last=False)[1]
            self.size -= 1
            self._now = max(self._now, flow.tag)
            flow.tag += ticket.cost / flow.weight
            if flow.tickets:
                self._push(tenant, flow)
            return ticket

    def remove(self, ticket: Ticket) -> bool:
        """Take it from wherever it stands; whether it was there."""
        flow = self.flows.get(ticket.tenant)
        if flow is None or flow.tickets.pop(id(ticket), None) is None:
            return False
        self.size -= 1
        return True

    def charge(self, ticket: Ticket) -> None:
        """Its tenant pays for a ticket that did not have to wait."""
        flow = self._flow(ticket)
        self._now = flow.tag = max(flow.tag, self._now)
        flow.tag += ticket.cost / flow.weight

    def correct(self, ticket: Ticket, tokens: float) -> None:
        """It took so many tokens instead of its forecast."""
        flow = self.flows.get(ticket.tenant)
        if flow is None:
            return
        flow.tag += (tokens - ticket.cost) / ticket.weight
        if tokens > 0:
            flow.mean += SMOOTHING * (tokens - flow.mean)
        if flow.tickets:
            self._push(ticket.tenant, flow)

    def ahead(self, ticket: Ticket, room: int | None) -> float:
        """Tokens that would be served up to and including a further ticket of its tenant."""
        own = self.flows.get(ticket.tenant)
        others = [flow for flow in self.flows.values() if flow.tickets and flow is not own]
        count, mean, tag = (0, ticket.cost, self._now) if own is None else (len(own.tickets), own.mean, own.tag)
        if room is not None:
            weights = ticket.weight + sum(flow.weight for flow in others)
            count = min(count, math.ceil(room * ticket.weight / weights))
        # The virtual time of its turn: the others are served until theirs gets there, in whole requests.
        turn = max(tag, self._now) + count * mean / ticket.weight
        total = (count + 1) * mean
        for flow in others:
            if flow.tag < turn:
                before = math.ceil((turn - flow.tag) * flow.weight / flow.mean)
                total += flow.mean * (min(before, len(flow.tickets)) if room is None else before)
        return total

    def work(self) -> float:
        """Tokens of everything that waits."""
        return sum(flow.work for flow in self.flows.values() if flow.tickets)

    def heaviest(self) -> Flow | None:
        """The tenant with the most tickets for its weight."""
        return max((flow for flow in self.flows.values() if flow.tickets), key=lambda flow: flow.load, default=None)

    def _flow(self, ticket: Ticket) -> Flow:
        flow = self.flows.get(ticket.tenant)
        if flow is None:
            if len(self.flows) >= MAX_IDLE:
                self._forget()
            flow = self.flows[ticket.tenant] = Flow(ticket.cost)
        flow.weight = ticket.weight
        return flow

    def _forget(self) -> None:
        idle = sorted((flow.tag, name) for name, flow in self.flows.items() if not flow.tickets)
        for _, name in idle[: len(idle) // 2 + 1]:
            del self.flows[name]

    def _push(self, tenant: str, flow: Flow) -> None:
        self._entries += 1
        flow.version = self._entries
        heappush(self._heap, (flow.tag, self._entries, tenant, flow.version))


class FairLine:
    """Holds each ticket at most once. `add`, `pop` and `remove` cost O(log n); the rest O(tenants that wait)."""

    def __init__(self) -> None:
        self._bands: dict[Priority, Band] = {priority: Band() for priority in PRIORITIES}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, ticket: Ticket) -> None:
        """Behind everyone of its tenant and priority."""
        self._bands[ticket.priority].add(ticket)
        self._size += 1

    def pop(self) -> Ticket | None:
        """The next one; None where nobody waits."""
        for band in self._bands.values():
            if band.size:
                self._size -= 1
                return band.pop()
        return None

    def remove(self, ticket: Ticket) -> None:
        """Does nothing where it is not in the line."""
        self._size -= self._bands[ticket.priority].remove(ticket)

    def charge(self, ticket: Ticket) -> None:
        """It is let in without waiting."""
        self._bands[ticket.priority].charge(ticket)

    def correct(self, ticket: Ticket, tokens: float) -> None:
        """One that was let in has taken so many tokens."""
        self._bands[ticket.priority].correct(ticket, tokens)

    def ahead(self, ticket: Ticket, room: int | None = None) -> float:
        """Tokens that would be served until this one's turn, if it joined; its own count.

        `room`: the line is full with so many. Then for each one served another comes, so that the others use their
        whole shares, and its tenant has no more before it than its own share of the room.
        """
        work = 0.0
        for priority, band in self._bands.items():
            if priority == ticket.priority:
                return work + band.ahead(ticket, room)
            work += band.work()
        return work

    def work(self) -> float:
        """Tokens of everything that waits."""
        return sum(band.work() for band in self._bands.values())

    def displace(self, ticket: Ticket) -> Ticket | None:
        """Whom to send away so that this one finds room: taken out of the line; None where it must go itself.

        The youngest of the lowest priority, of the tenant that has most waiting there for its weight; of its own
        priority only where that tenant has more than it would have itself.
        """
        for priority in reversed(PRIORITIES):
            band = self._bands[priority]
            heaviest = band.heaviest()
            if heaviest is not None:
                break
        else:
            return None
        if PRIORITIES.index(priority) < PRIORITIES.index(ticket.priority):
            return None
        if priority == ticket.priority:
            own = band.flows.get(ticket.tenant)
            waiting = 0 if own is None else len(own.tickets)
            if own is heaviest or (waiting + 1) / ticket.weight >= heaviest.load:
                return None
        youngest = next(reversed(heaviest.tickets.values()))
        self.remove(youngest)
        return youngest
