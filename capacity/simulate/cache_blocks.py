"""The KV cache of a simulated engine: blocks of running sequences, shared prefixes, preemption when it is full."""

from capacity.compiled import aside
from capacity.simulate.world import NOBODY, Ints, Prefix, Records


@aside
def shareable(limits: Records, requests: Records, prefix: Prefix, i: int) -> int:
    """Whole prefix blocks in the prompt of request `i`."""
    count = prefix.offsets[i + 1] - prefix.offsets[i]
    return int(min(count, requests[i].prompt // limits[0].prefix_tokens))


@aside
def hits(limits: Records, requests: Records, prefix: Prefix, r: int, i: int) -> int:
    """Prompt tokens of request `i` that the prefix cache of replica `r` holds; at least one is always computed."""
    lim = limits[0]
    first, own = prefix.offsets[i], r * lim.distinct
    count = shareable(limits, requests, prefix, i)
    found = 0
    while found < count and prefix.blocks[own + prefix.ids[first + found]].present == 1:
        found += 1
    return int(min(found * lim.prefix_tokens, requests[i].prompt + requests[i].done - 1))


@aside
def take(limits: Records, requests: Records, replicas: Records, prefix: Prefix, r: int, i: int) -> int:
    """Blocks for the tokens of request `i`; gives how many of them are shared, NOBODY where there is no room.

    Blocks that nobody uses are given up from the longest unused on.
    """
    lim, one = limits[0], replicas[r]
    first, count, unit, own = 0, 0, 0, r * lim.distinct
    if lim.prefix_tokens > 0:
        first = prefix.offsets[i]
        count = shareable(limits, requests, prefix, i)
        unit = lim.prefix_tokens // lim.block_size
    fresh, idle = 0, 0
    for k in range(first, first + count):
        block = prefix.blocks[own + prefix.ids[k]]
        if block.present == 0:
            fresh += 1
        elif block.users == 0:
            idle += 1
    private = max(-(-(requests[i].prompt + requests[i].done) // lim.block_size) - count * unit, 0)
    if lim.blocks > 0 and one.used + private + fresh * unit - (one.idle_blocks - idle) * unit > lim.blocks:
        return NOBODY
    for k in range(first, first + count):
        h = own + prefix.ids[k]
        block = prefix.blocks[h]
        if block.present == 0:
            block.present = 1
            one.used += unit
        elif block.users == 0:
            _unlink(replicas, prefix, r, h)
        block.users += 1
    one.used += private
    while lim.blocks > 0 and one.used > lim.blocks:
        evict(limits, replicas, prefix, r)
    one.peak_used = max(one.peak_used, one.used)
    return int(count * unit)


@aside
def _unlink(replicas: Records, prefix: Prefix, r: int, h: int) -> None:
    one, block = replicas[r], prefix.blocks[h]
    if block.older == NOBODY:
        one.idle_oldest = block.newer
    else:
        prefix.blocks[block.older].newer = block.newer
    if block.newer == NOBODY:
        one.idle_newest = block.older
    else:
        prefix.blocks[block.newer].older = block.older
    block.older = NOBODY
    block.newer = NOBODY
    one.idle_blocks -= 1


@aside
def evict(limits: Records, replicas: Records, prefix: Prefix, r: int) -> bool:
    """Give up the prefix block that has been unused longest; False where there is none."""
    h = replicas[r].idle_oldest
    if h == NOBODY:
        return False
    _unlink(replicas, prefix, r, h)
    prefix.blocks[h].present = 0
    replicas[r].used -= limits[0].prefix_tokens // limits[0].block_size
    return True


@aside
def release(limits: Records, replicas: Records, slots: Records, prefix: Prefix, s: int, tokens: int) -> None:
    """Give back the blocks of slot `s`, which holds `tokens`; its prefix stays cached until room is needed."""
    lim, slot = limits[0], slots[s]
    r = s // lim.slots
    one = replicas[r]
    one.used -= max(-(-tokens // lim.block_size) - slot.shared, 0)
    if slot.shared == 0:
        return
    first = prefix.offsets[slot.request]
    count = slot.shared * lim.block_size // lim.prefix_tokens
    # The end of a prefix is the first to be given up: without its beginning it is worth nothing.
    for k in range(first + count - 1, first - 1, -1):
        h = r * lim.distinct + prefix.ids[k]
        block = prefix.blocks[h]
        block.users -= 1
        if block.users == 0:
            block.older = one.idle_newest
            block.newer = NOBODY
            if one.idle_newest == NOBODY:
                one.idle_oldest = h
            else:
                prefix.blocks[one.idle_newest].newer = h
            one.idle_newest = h
            one.idle_blocks += 1


@aside
def grow(
    limits: Records, requests: Records, replicas: Records, slots: Records, tables: Ints, prefix: Prefix, r: int
) -> bool:
    """Give each decoding sequence the block that its next token needs; whether sequences were put back for that.

    Where there is no room, the sequence admitted last of the lowest priority goes back to the head of its queue and
    will be prefilled again, its tokens included (recompute).
    """
    lim, one = limits[0], replicas[r]
    # Floor modulus: the phase p of a sequence has p + step = 0 modulo the block size when it takes a block.
    place = lim.growth + (-(one.iteration + 1)) % lim.block_size
    preempted = False
    while one.used + tables[r, place] > lim.blocks:
        if not evict(limits, replicas, prefix, r):
            _preempt(limits, requests, replicas, slots, tables, prefix, r)
            preempted = True
    one.used += tables[r, place]
    one.peak_used = max(one.peak_used, one.used)
    return preempted


@aside
def _preempt(
    limits: Records, requests: Records, replicas: Records, slots: Records, tables: Ints, prefix: Prefix, r: int
) -> None:
    lim, one = limits[0], replicas[r]
    p = lim.priorities - 1
    while tables[r, lim.newest + p] == NOBODY:
        p -= 1
    s = tables[r, lim.newest + p]
    slot, request = slots[s], requests[slots[s].request]
    if s == one.partial:
        one.partial = NOBODY
        release(limits, replicas, slots, prefix, s, slot.base)
    else:
        _unhang(slots, tables, r, s, (slot.since + slot.left - 1) & lim.mask)
        produced = one.iteration + 1 - slot.since
        tables[r, lim.growth + (slot.base - slot.since - 1) % lim.block_size] -= 1
        one.decoding -= 1
        one.context -= slot.base + produced
        release(limits, replicas, slots, prefix, s, slot.base + produced - 1)
        request.done += produced - slot.given
    forget(limits, replicas, slots, tables, s, p)
    one.waiting += 1
    one.preemptions += 1
    request.preempted += 1
    request.behind = tables[r, lim.heads + p]
    tables[r, lim.heads + p] = slot.request
    if tables[r, lim.tails + p] == NOBODY:
        tables[r, lim.tails + p] = slot.request


@aside
def _unhang(slots: Records, tables: Ints, r: int, s: int, place: int) -> None:
    at = tables[r, place]
    if at == s:
        tables[r, place] = slots[s].next
        return
    while slots[at].next != s:
        at = slots[at].next
    slots[at].next = slots[s].next


@aside
def forget(limits: Records, replicas: Records, slots: Records, tables: Ints, s: int, p: int) -> None:
    """The slot is free: out of the order of admission and in the list of the free."""
    r = s // limits[0].slots
    one, slot = replicas[r], slots[s]
    if slot.newer == NOBODY:
        tables[r, limits[0].newest + p] = slot.older
    else:
        slots[slot.newer].older = slot.older
    if slot.older != NOBODY:
        slots[slot.older].newer = slot.newer
    slot.next = one.vacant
    one.vacant = s
    one.running -= 1
