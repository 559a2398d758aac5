"""Who comes when, and to which replica: clients that send, queues that take or refuse, waits that end."""

import math

from capacity.compiled import aside
from capacity.simulate.world import BETWEEN, IDLE, NOBODY, REJECTED, TIMED_OUT, TOO_LONG, Ints, Records, Times


@aside
def next_arrival(limits: Records, requests: Records, free_at: Times, due: int) -> float:
    """When request `due` comes: at its time, and not before a client is free; infinity as long as none will be."""
    if due >= len(requests):
        return math.inf
    planned = requests[due].arrived
    if limits[0].clients < 0:
        return float(planned)
    if limits[0].clients == 0:
        return math.inf
    return float(max(planned, free_at[limits[0].client]))


@aside
def free_client(limits: Records, free_at: Times, now: float) -> None:
    """A client has its answer, or its refusal, and thinks."""
    lim = limits[0]
    if lim.clients >= 0:
        free_at[(lim.client + lim.clients) % len(free_at)] = now + lim.think
        lim.clients += 1


@aside
def arrive(
    limits: Records, requests: Records, replicas: Records, tables: Ints, free_at: Times, i: int, now: float
) -> None:
    """Request `i` comes to a replica, which queues or refuses it."""
    lim, request = limits[0], requests[i]
    request.arrived = now
    if lim.clients > 0:
        lim.clients -= 1
        lim.client = (lim.client + 1) % len(free_at)
    r = _choose(limits, replicas)
    one = replicas[r]
    request.replica = r
    if lim.timeout >= 0:
        expire(limits, requests, replicas, tables, free_at, r, now)
    too_long = lim.blocks > 0 and -(-(request.prompt + request.output) // lim.block_size) > lim.blocks
    if too_long or (lim.max_waiting >= 0 and one.running + one.waiting >= lim.slots + lim.max_waiting):
        request.outcome = TOO_LONG if too_long else REJECTED
        request.finished = now
        free_client(limits, free_at, now)
        return
    one.area += (one.running + one.waiting) * (now - one.last)
    one.last = now
    one.waiting += 1
    head, tail = lim.heads + request.priority, lim.tails + request.priority
    if tables[r, head] == NOBODY:
        tables[r, head] = i
    else:
        requests[tables[r, tail]].behind = i
    tables[r, tail] = i
    if one.phase == IDLE:
        one.phase = BETWEEN
        one.end = now


@aside
def _choose(limits: Records, replicas: Records) -> int:
    count = len(replicas)
    if count == 1:
        return 0
    if limits[0].round_robin == 1:
        turn = limits[0].turn
        limits[0].turn = turn + 1
        return int(turn % count)
    best, least = 0, replicas[0].running + replicas[0].waiting
    for r in range(1, count):
        outstanding = replicas[r].running + replicas[r].waiting
        if outstanding < least:
            best, least = r, outstanding
    return best


@aside
def expire(
    limits: Records, requests: Records, replicas: Records, tables: Ints, free_at: Times, r: int, now: float
) -> None:
    """Those who waited too long leave the heads of the queues; a preempted request has been started and stays."""
    lim, one = limits[0], replicas[r]
    for p in range(lim.priorities):
        while tables[r, lim.heads + p] != NOBODY:
            request = requests[tables[r, lim.heads + p]]
            left = request.arrived + lim.timeout
            if request.started >= 0 or left >= now:
                break
            tables[r, lim.heads + p] = request.behind
            if request.behind == NOBODY:
                tables[r, lim.tails + p] = NOBODY
            one.area += (one.running + one.waiting) * (now - one.last) - (now - left)
            one.last = now
            one.waiting -= 1
            request.outcome = TIMED_OUT
            request.finished = left
            free_client(limits, free_at, now)
