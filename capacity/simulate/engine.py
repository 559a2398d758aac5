"""Engines that schedule at every step: who decodes, who joins, how long the step takes, who leaves.

As vLLM does it: each running sequence gets a token per step; what is left of the token budget goes to prompts, in order
of priority and arrival, as long as there is a free slot and, with a bounded KV cache, room for the whole prompt. Where
prompts are not chunked, one that does not fit in what is left waits for the next step (one larger than the whole budget
goes in a step without other prompts). After a preemption nobody joins in that step.
"""

import math

from capacity.compiled import aside, compiled
from capacity.simulate.cache_blocks import forget, grow, hits, release, take
from capacity.simulate.clients import arrive, expire, free_client, next_arrival
from capacity.simulate.world import BETWEEN, DONE, IDLE, NOBODY, STEPPING, Ints, Prefix, Record, Records, World


@compiled
def drive(world: World) -> None:
    """Let all requests come, and run until the last one has left.

    Events in order of time; at one instant a step ends, then requests arrive, then the next step starts.
    """
    limits, requests, replicas, slots, tables, prefix, free_at, log = world
    lim = limits[0]
    due = 0
    # Whose answer frees a client may change the next arrival of another replica: then time goes step by step for all.
    apart = len(replicas) == 1 or lim.clients < 0
    while True:
        arrival = next_arrival(limits, requests, free_at, due)
        r, end = _earliest(replicas)
        if r == NOBODY and arrival == math.inf:
            return
        if r != NOBODY and replicas[r].phase == STEPPING and end <= arrival:
            _complete(limits, requests, replicas, slots, tables, prefix, r)
            for _ in range(replicas[r].left):
                free_client(limits, free_at, end)
        elif r != NOBODY and end < arrival:
            if apart and lim.logged == len(log):
                _coast(limits, replicas, tables, r, arrival)
            if replicas[r].end < arrival:
                if lim.timeout >= 0:
                    expire(limits, requests, replicas, tables, free_at, r, replicas[r].end)
                _start(limits, requests, replicas, slots, tables, prefix, r)
                if lim.logged < len(log) and replicas[r].phase == STEPPING:
                    _note(replicas, log[lim.logged], r, end)
                    lim.logged += 1
        else:
            arrive(limits, requests, replicas, tables, free_at, due, arrival)
            due += 1


@aside
def _earliest(replicas: Records) -> tuple[int, float]:
    best, end = NOBODY, math.inf
    for r in range(len(replicas)):
        one = replicas[r]
        if one.phase != IDLE and one.end < end:
            best, end = r, one.end
    return best, end


@aside
def _coast(limits: Records, replicas: Records, tables: Ints, r: int, until: float) -> None:
    """Make the steps in which nobody joins, leaves or is preempted, as long as they start before `until`."""
    lim, one = limits[0], replicas[r]
    if one.partial != NOBODY or one.decoding == 0 or (one.waiting > 0 and one.running < lim.slots):
        return
    now, context, iteration = one.end, one.context, one.iteration
    same = lim.decode_fixed + lim.decode_seq * one.decoding
    first = iteration
    while now < until and tables[r, (iteration + 1) & lim.mask] == NOBODY:
        if lim.blocks > 0:
            blocks = tables[r, lim.growth + (-(iteration + 1)) % lim.block_size]
            if one.used + blocks > lim.blocks:
                break
            one.used += blocks
        now += same + lim.decode_ctx * context
        context += one.decoding
        iteration += 1
    one.busy += now - one.end
    one.end, one.context, one.iteration = now, context, iteration
    one.slot_steps += one.decoding * (iteration - first)
    one.peak_used = max(one.peak_used, one.used)


@aside
def _start(
    limits: Records, requests: Records, replicas: Records, slots: Records, tables: Ints, prefix: Prefix, r: int
) -> None:
    """Make up the step that starts now, and say when it will end; with nothing to do the replica idles."""
    lim, one = limits[0], replicas[r]
    one.step_tokens, one.step_prompts, one.joined, one.join_context, one.step_squares = 0, 0, 0, 0, 0.0
    one.firsts = NOBODY
    full = lim.blocks > 0 and grow(limits, requests, replicas, slots, tables, prefix, r)
    one.iteration += 1
    if one.partial != NOBODY:
        slot = slots[one.partial]
        _prefill(
            limits, replicas, slots, tables, one.partial, min(lim.budget - one.decoding, slot.base - slot.computed)
        )
    if one.waiting > 0 and not full:
        _admit(limits, requests, replicas, slots, tables, prefix, r)
    if one.decoding + one.step_tokens == 0:
        one.phase = IDLE
        one.iteration -= 1
        return
    fixed, rest = 0.0, 0.0
    if one.decoding > 0:
        fixed = lim.decode_fixed
        rest = lim.decode_seq * one.decoding + lim.decode_ctx * one.context
    if one.step_tokens > 0:
        fixed = max(fixed, lim.prefill_fixed) + (lim.prefill_mixed if one.decoding > 0 else 0.0)
        seen = max(one.step_tokens - max(lim.hidden - one.decoding, 0.0), 0.0)
        rest += lim.prefill_seq * one.step_prompts + lim.prefill_token * seen
        rest += lim.prefill_token2 * one.step_squares
    one.end += fixed + rest
    one.phase = STEPPING
    one.busy += fixed + rest
    one.slot_steps += one.decoding + one.joined
    one.prefilled += one.step_tokens


@aside
def _note(replicas: Records, line: Record, r: int, now: float) -> None:
    one = replicas[r]
    line.start = now
    line.end = one.end
    line.replica = r
    line.decoding = one.decoding
    line.tokens = one.step_tokens
    line.waiting = one.waiting


@aside
def _admit(
    limits: Records, requests: Records, replicas: Records, slots: Records, tables: Ints, prefix: Prefix, r: int
) -> None:
    lim, one = limits[0], replicas[r]
    for p in range(lim.priorities):
        while tables[r, lim.heads + p] != NOBODY:
            left = lim.budget - one.decoding - one.step_tokens
            if one.running >= lim.slots or left <= 0:
                return
            i = tables[r, lim.heads + p]
            request = requests[i]
            cached = hits(limits, requests, prefix, r, i) if lim.prefix_tokens > 0 else 0
            fresh = request.prompt + request.done - cached
            given = lim.given == 1 and request.preempted == 0
            alone = fresh > lim.budget and one.step_tokens == 0
            if fresh > left and lim.chunked == 0 and not alone and not given:
                return
            shared = 0
            if lim.blocks > 0 or lim.prefix_tokens > 0:
                shared = take(limits, requests, replicas, prefix, r, i)
                if shared == NOBODY:
                    return
            if request.started < 0:
                request.started = one.end
                request.cached = cached
            s = _seat(limits, requests, replicas, slots, tables, r, p)
            slots[s].shared = shared
            slots[s].computed = cached
            if given:
                _join_given(limits, replicas, slots, tables, s)
            else:
                tokens = min(fresh, left) if lim.chunked == 1 else fresh
                _prefill(limits, replicas, slots, tables, s, tokens)


@aside
def _seat(limits: Records, requests: Records, replicas: Records, slots: Records, tables: Ints, r: int, p: int) -> int:
    """Take the first of queue `p` to a free slot."""
    lim, one = limits[0], replicas[r]
    i = tables[r, lim.heads + p]
    request = requests[i]
    tables[r, lim.heads + p] = request.behind
    if request.behind == NOBODY:
        tables[r, lim.tails + p] = NOBODY
    s = one.vacant
    slot = slots[s]
    one.vacant = slot.next
    one.running += 1
    one.waiting -= 1
    slot.request = i
    slot.base = request.prompt + request.done
    slot.left = request.output - request.done
    slot.given = 0
    slot.older = tables[r, lim.newest + p]
    slot.newer = NOBODY
    if slot.older != NOBODY:
        slots[slot.older].newer = s
    tables[r, lim.newest + p] = s
    return int(s)


@aside
def _prefill(limits: Records, replicas: Records, slots: Records, tables: Ints, s: int, tokens: int) -> None:
    """Compute `tokens` more of the prompt in slot `s`; at its end the sequence joins."""
    r = s // limits[0].slots
    one, slot = replicas[r], slots[s]
    start, stop = float(slot.computed), float(slot.computed + tokens)
    one.step_tokens += tokens
    one.step_squares += stop * stop - start * start
    slot.computed += tokens
    if slot.computed < slot.base:
        one.partial = s
        return
    if one.partial == s:
        one.partial = NOBODY
    one.step_prompts += 1
    one.joined += 1
    one.join_context += slot.base + 1
    _hang(limits, replicas, slots, tables, s, one.iteration)


@aside
def _join_given(limits: Records, replicas: Records, slots: Records, tables: Ints, s: int) -> None:
    """A prompt whose KV cache came from elsewhere decodes at once: its last token is what the first step reads."""
    one, slot = replicas[s // limits[0].slots], slots[s]
    slot.base -= 1
    slot.left += 1
    slot.given = 1
    one.decoding += 1
    one.context += slot.base + 1
    _hang(limits, replicas, slots, tables, s, one.iteration - 1)


@aside
def _hang(limits: Records, replicas: Records, slots: Records, tables: Ints, s: int, since: int) -> None:
    """Note the step in which the sequence will end, and that this one gives its first token."""
    lim = limits[0]
    r = s // lim.slots
    one, slot = replicas[r], slots[s]
    slot.since = since
    place = (since + slot.left - 1) & lim.mask
    slot.next = tables[r, place]
    tables[r, place] = s
    slot.chain = one.firsts
    one.firsts = s
    if lim.blocks > 0:
        tables[r, lim.growth + (slot.base - since - 1) % lim.block_size] += 1


@aside
def _complete(
    limits: Records, requests: Records, replicas: Records, slots: Records, tables: Ints, prefix: Prefix, r: int
) -> None:
    """The step has ended: its tokens are there, and those with their last one leave (`left`: how many)."""
    lim, one = limits[0], replicas[r]
    now = one.end
    one.phase = BETWEEN
    one.left = 0
    one.context += one.decoding + one.join_context
    one.decoding += one.joined
    s = one.firsts
    while s != NOBODY:
        if requests[slots[s].request].first < 0:
            requests[slots[s].request].first = now
        s = slots[s].chain
    s = tables[r, one.iteration & lim.mask]
    if s == NOBODY:
        return
    tables[r, one.iteration & lim.mask] = NOBODY
    one.area += (one.running + one.waiting) * (now - one.last)
    one.last = now
    while s != NOBODY:
        slot, following = slots[s], slots[s].next
        request = requests[slot.request]
        request.finished = now
        request.outcome = DONE
        one.context -= slot.base + slot.left
        one.decoding -= 1
        if lim.blocks > 0:
            tables[r, lim.growth + (slot.base - slot.since - 1) % lim.block_size] -= 1
        if lim.blocks > 0 or lim.prefix_tokens > 0:
            release(limits, replicas, slots, prefix, s, slot.base + one.iteration - slot.since)
        forget(limits, replicas, slots, tables, s, request.priority)
        one.left += 1
        s = following
