"""Servers that take one batch at a time: fixed, window, work-conserving, static.

One queue for all servers, or one queue and one server each. Before a request arrives, every batch that starts earlier
is started, so a batch holds exactly those who were there in time.
"""

import math
from typing import NamedTuple

import numpy as np

from capacity.compiled import aside, compiled
from capacity.scheduler import Scheduler
from capacity.simulate.world import (
    DONE,
    NOBODY,
    REJECTED,
    STEP,
    TOO_LONG,
    Record,
    Records,
    Times,
    records_of,
    step_times,
)
from capacity.step_model import StepModel
from capacity.workload import Requests

GREEDY, STATIC, FIXED, CLOSE, HOLD = range(5)

RULES = np.dtype(
    [
        ("policy", "i8"),
        ("size", "i8"),
        ("wait", "f8"),
        ("room", "i8"),  # most that wait in a line; negative: no bound
        ("blocks", "i8"),
        ("block_size", "i8"),
        ("round_robin", "i8"),
        ("think", "f8"),
        ("decode_fixed", "f8"),
        ("decode_seq", "f8"),
        ("decode_ctx", "f8"),
        ("prefill_fixed", "f8"),
        ("prefill_seq", "f8"),
        ("prefill_token", "f8"),
        ("prefill_token2", "f8"),
        ("hidden", "f8"),
        # What has happened so far.
        ("due", "i8"),
        ("turn", "i8"),
        ("batches", "i8"),
        ("served", "f8"),  # integral of the number in service
        ("busy", "f8"),
        ("useful", "f8"),  # slots times steps with a use, and all of them
        ("all", "f8"),
        ("logged", "i8"),
    ],
    align=True,
)
LINE = np.dtype(
    [
        ("head", "i8"),
        ("tail", "i8"),
        ("waiting", "i8"),
        ("forming", "i8"),  # of the waiting, those in the batch that is still open
        ("opened", "f8"),  # when it was opened
        ("latest", "f8"),  # last arrival
        ("full_at", "f8"),  # when enough for a batch were waiting
        ("first_closed", "i8"),  # closed batches: first …
        ("after_closed", "i8"),  # … and one after the last
        ("last", "f8"),  # last change of the number waiting
        ("waited", "f8"),  # integral of the number waiting
    ],
    align=True,
)
SERVER = np.dtype([("free_at", "f8"), ("batch", "i8")], align=True)
CLOSED = np.dtype([("at", "f8"), ("size", "i8")], align=True)
BATCH = np.dtype([("size", "i8"), ("to_first", "f8"), ("service", "f8"), ("useful", "f8"), ("all", "f8")], align=True)


class Hall(NamedTuple):
    """Everything that a run changes; `rules`, `batch`: one record; `clients`: when each is free, infinity: it waits."""

    rules: Records
    requests: Records
    work: Times
    lines: Records
    servers: Records  # line, server
    closed: Records  # line, batch
    clients: Times
    batch: Records
    log: Records


def hall_of(requests: Requests, scheduler: Scheduler, model: StepModel, log: int = 0) -> Hall:
    """Idle servers, and the requests that will come."""
    policies = {"work-conserving": GREEDY, "static": STATIC, "fixed": FIXED}
    policy = policies.get(scheduler.kind, HOLD if scheduler.window == "hold" else CLOSE)
    shared = scheduler.dispatching == "shared"
    lines, servers = (1, scheduler.replicas) if shared else (scheduler.replicas, 1)
    state = np.zeros(lines, dtype=LINE)
    state["head"] = state["tail"] = NOBODY
    clients = requests.clients
    rules = np.zeros(1, dtype=RULES)
    for name, value in _rules(scheduler, model).items():
        rules[name] = value
    rules["policy"] = policy
    rules["think"] = clients.think_s if clients else 0.0
    return Hall(
        rules,
        records_of(requests),
        np.zeros(0) if requests.work is None else requests.work,
        state,
        np.zeros((lines, servers), dtype=SERVER),
        np.zeros((lines, len(requests) + 1 if policy in (FIXED, CLOSE) else 1), dtype=CLOSED),
        np.zeros(clients.in_flight if clients else 0),
        np.zeros(1, dtype=BATCH),
        np.zeros(log, dtype=STEP),
    )


def _rules(scheduler: Scheduler, model: StepModel) -> dict[str, float]:
    return {
        "size": scheduler.max_num_seqs,
        "wait": scheduler.max_wait_s or 0.0,
        "room": -1 if scheduler.max_waiting is None else scheduler.max_waiting,
        # Only a static batch has sequences; the others know no lengths.
        "blocks": (scheduler.kv_blocks or 0) if scheduler.kind == "static" else 0,
        "block_size": scheduler.block_size,
        "round_robin": scheduler.dispatching == "round-robin",
        **step_times(model),
    }


@compiled
def serve(hall: Hall) -> None:
    """Let all requests come, and serve until nobody waits."""
    rules, requests, work, lines, servers, closed, clients, batch, log = hall
    rule = rules[0]
    while True:
        arrival = _next_arrival(rules, requests, clients)
        best, soonest = NOBODY, math.inf
        for q in range(len(lines)):
            at = _next_event(rules, requests, lines, servers, closed, q, arrival)
            if at < soonest:
                best, soonest = q, at
        if best != NOBODY and soonest < arrival:
            line = lines[best]
            if rule.policy in (FIXED, CLOSE) and _closing(rules, line, arrival) <= soonest:
                _close(line, closed[best, line.after_closed], soonest)
                continue
            wanted = min(line.waiting, rule.size)
            if rule.policy in (FIXED, CLOSE):
                wanted = closed[best, line.first_closed].size
                line.first_closed += 1
            first = line.head
            _compose(rules, requests, work, batch, first, wanted)
            _start(rules, requests, lines, servers, clients, batch, best, soonest)
            if rule.logged < len(log):
                _note(log[rule.logged], batch[0], requests[first].replica, soonest, line.waiting)
                rule.logged += 1
        elif arrival == math.inf:
            return
        else:
            i = rule.due
            rule.due += 1
            q = _choose(rules, lines, servers, arrival)
            _arrive(rules, requests, lines, servers, clients, i, q, arrival)
            if rule.policy in (FIXED, CLOSE) and lines[q].forming == rule.size:
                _close(lines[q], closed[q, lines[q].after_closed], arrival)


@aside
def _next_arrival(rules: Records, requests: Records, clients: Times) -> float:
    due = rules[0].due
    if due >= len(requests):
        return math.inf
    planned = requests[due].arrived
    return float(max(planned, clients.min()) if len(clients) > 0 else planned)


@aside
def _closing(rules: Records, line: Record, arrival: float) -> float:
    """When the open batch closes without a further arrival; fixed batches only when nobody else comes."""
    if line.forming == 0:
        return math.inf
    if rules[0].policy == CLOSE:
        return float(line.opened + rules[0].wait)
    return float(line.latest) if arrival == math.inf else math.inf


@aside
def _free(servers: Records, q: int) -> tuple[int, float]:
    best, soonest = 0, servers[q, 0].free_at
    for k in range(1, servers.shape[1]):
        if servers[q, k].free_at < soonest:
            best, soonest = k, servers[q, k].free_at
    return best, soonest


@aside
def _next_event(
    rules: Records, requests: Records, lines: Records, servers: Records, closed: Records, q: int, arrival: float
) -> float:
    rule, line = rules[0], lines[q]
    if line.waiting == 0:
        return math.inf
    _, free = _free(servers, q)
    if rule.policy in (FIXED, CLOSE):
        start = math.inf
        if line.first_closed < line.after_closed:
            start = max(closed[q, line.first_closed].at, free)
        return float(min(start, _closing(rules, line, arrival)))
    ready = requests[line.head].arrived
    if rule.policy == HOLD:
        ready += rule.wait
        if line.waiting >= rule.size:
            ready = min(ready, line.full_at)
    return float(max(ready, free))


@aside
def _close(line: Record, batch: Record, now: float) -> None:
    batch.at = now
    batch.size = line.forming
    line.after_closed += 1
    line.forming = 0


@aside
def _choose(rules: Records, lines: Records, servers: Records, now: float) -> int:
    count = len(lines)
    if count == 1:
        return 0
    if rules[0].round_robin == 1:
        turn = rules[0].turn
        rules[0].turn = turn + 1
        return int(turn % count)
    best, least = 0, math.inf
    for q in range(count):
        outstanding = float(lines[q].waiting + (servers[q, 0].batch if servers[q, 0].free_at > now else 0))
        if outstanding < least:
            best, least = q, outstanding
    return best


@aside
def _arrive(
    rules: Records, requests: Records, lines: Records, servers: Records, clients: Times, i: int, q: int, now: float
) -> None:
    rule, request, line = rules[0], requests[i], lines[q]
    request.arrived = now
    request.replica = q
    if len(clients) > 0:
        clients[clients.argmin()] = math.inf
    too_long = rule.blocks > 0 and -(-(request.prompt + request.output) // rule.block_size) > rule.blocks
    full = rule.room >= 0 and line.waiting >= rule.room and (line.waiting > 0 or _free(servers, q)[1] > now)
    if too_long or full:
        request.outcome = TOO_LONG if too_long else REJECTED
        request.finished = now
        if len(clients) > 0:
            clients[clients.argmax()] = now + rule.think
        return
    line.waited += line.waiting * (now - line.last)
    line.last = now
    line.latest = now
    if line.waiting == 0:
        line.head = i
    else:
        requests[line.tail].behind = i
    line.tail = i
    line.waiting += 1
    if line.waiting == rule.size:
        line.full_at = now
    if line.forming == 0:
        line.opened = now
    line.forming += 1


@aside
def _start(
    rules: Records,
    requests: Records,
    lines: Records,
    servers: Records,
    clients: Times,
    batch: Records,
    q: int,
    now: float,
) -> None:
    """Serve the batch that was put together for line `q` from `now` on."""
    rule, line, made = rules[0], lines[q], batch[0]
    server, _ = _free(servers, q)
    end = now + made.service
    i = line.head
    for _ in range(made.size):
        request = requests[i]
        request.started = now
        request.first = now + made.to_first
        request.finished = end
        request.outcome = DONE
        if len(lines) == 1:
            request.replica = server
        if len(clients) > 0:
            clients[clients.argmax()] = end + rule.think
        i = request.behind
    line.head = i
    line.waited += line.waiting * (now - line.last)
    line.last = now
    line.waiting -= made.size
    line.full_at = now
    servers[q, server].free_at = end
    servers[q, server].batch = made.size
    rule.batches += 1
    rule.served += made.size * made.service
    rule.busy += made.service
    rule.useful += made.useful
    rule.all += made.all


@aside
def _compose(rules: Records, requests: Records, work: Times, batch: Records, first: int, wanted: int) -> None:
    """Up to `wanted` requests from `first` on: how many, seconds to first tokens and end, slots and their use."""
    rule, made = rules[0], batch[0]
    size, longest, tokens, squares, useful, own = 0, 0, 0, 0.0, 0.0, 0.0
    i = first
    while size < wanted:
        request = requests[i]
        reach = max(longest, request.output)
        # Every sequence of a static batch keeps its room to the batch's end.
        most = tokens + request.prompt + (size + 1) * (reach + rule.block_size - 1)
        if rule.blocks > 0 and size > 0 and most > rule.blocks * rule.block_size:
            break
        size += 1
        longest = reach
        tokens += request.prompt
        squares += float(request.prompt) * request.prompt
        useful += request.output
        if len(work) > 0:
            own += work[i]
        i = request.behind
    made.size = size
    if rule.policy != STATIC:
        made.service = rule.decode_fixed + rule.decode_seq * size + own
        made.to_first, made.useful, made.all = made.service, float(size), float(rule.size)
        return
    made.to_first = rule.prefill_fixed + rule.prefill_seq * size
    made.to_first += rule.prefill_token * max(tokens - rule.hidden, 0.0) + rule.prefill_token2 * squares
    # Finished sequences keep their slots and are computed on: the batch does not shrink.
    steps = float(longest - 1)
    each = rule.decode_fixed + rule.decode_seq * size + rule.decode_ctx * tokens
    made.service = made.to_first + steps * each + rule.decode_ctx * size * steps * (steps + 1) / 2
    made.useful, made.all = useful, float(size * longest)


@aside
def _note(line: Record, made: Record, server: int, now: float, waiting: int) -> None:
    line.start = now
    line.end = now + made.service
    line.replica = server
    line.decoding = made.size
    line.waiting = waiting
