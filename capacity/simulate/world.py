"""The state of simulated engines, as arrays that compiled code can work on.

One record per request, replica and slot. A sequence yields one token per step, so the step in which it will end is
known when its prefill ends: it is hung into a wheel of steps, and a step costs only the sequences that join or leave in
it. Blocks of the KV cache work likewise: a sequence takes a block every `block_size` steps, so a table (growth) counts
the sequences by the step, modulo the block size, in which they take one.

Slots and prefix blocks of all replicas lie in one array each; replica r has those from r * slots and r * distinct on.
The tables of a replica are one row of integers: the wheel, growth, the queues' heads and tails by priority, and by
priority the slot that was admitted last.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from capacity.scheduler import Scheduler
from capacity.step_model import StepModel
from capacity.workload import PrefixBlocks, Requests
from core.errors import ConfigError, Problem

Records = NDArray[np.void]
Record = Any  # one of them: compiled code reads and writes its fields as attributes
Ints = NDArray[np.int32]
Times = NDArray[np.float64]

NOBODY = -1
# Outcomes of a request.
PENDING, DONE, REJECTED, TIMED_OUT, TOO_LONG = range(5)
# What a replica does: nothing, a step, or it stands between two steps.
IDLE, STEPPING, BETWEEN = range(3)

REQUEST = np.dtype(
    [
        ("arrived", "f8"),
        ("started", "f8"),  # first admitted to a batch; negative: never
        ("first", "f8"),  # first token; negative: none
        ("finished", "f8"),
        ("prompt", "i4"),
        ("output", "i4"),
        ("done", "i4"),  # tokens kept from before a preemption
        ("behind", "i4"),  # the next one in the queue
        ("cached", "i4"),  # prompt tokens that the prefix cache held at the first admission
        ("replica", "i2"),
        ("preempted", "i2"),
        ("priority", "i1"),
        ("outcome", "i1"),
    ],
    align=True,
)
REPLICA = np.dtype(
    [
        ("end", "f8"),  # of the step, or when the next one may start
        ("phase", "i8"),
        ("iteration", "i8"),
        ("decoding", "i8"),
        ("running", "i8"),  # decoding, and the one whose prompt is partly prefilled
        ("waiting", "i8"),
        ("context", "i8"),  # tokens that the decoding sequences read in their next step
        ("used", "i8"),  # blocks of the KV cache
        ("vacant", "i8"),  # first free slot
        ("partial", "i8"),  # the slot whose prompt is partly prefilled
        ("firsts", "i8"),  # a slot that yields its first token in this step, the first of a chain
        ("left", "i8"),  # requests that ended with the last step
        ("joined", "i8"),  # sequences whose prefill ends in this step
        ("join_context", "i8"),
        ("step_tokens", "i8"),
        ("step_squares", "f8"),
        ("step_prompts", "i8"),
        ("idle_blocks", "i8"),  # cached blocks that nobody uses
        ("idle_oldest", "i8"),
        ("idle_newest", "i8"),
        ("last", "f8"),  # last change of the number in system
        ("area", "f8"),  # integral of the number in system
        ("busy", "f8"),
        ("slot_steps", "i8"),  # tokens produced: slots used, summed over steps
        ("preemptions", "i8"),
        ("peak_used", "i8"),
        ("prefilled", "i8"),  # prompt tokens computed
    ],
    align=True,
)
SLOT = np.dtype(
    [
        ("since", "i8"),  # the step in which its prefill ended
        ("request", "i4"),
        ("next", "i4"),  # in the wheel, or among the free
        ("chain", "i4"),  # the next slot that yields its first token in this step
        ("older", "i4"),  # admitted before it, same priority
        ("newer", "i4"),
        ("base", "i4"),  # tokens in the cache when its prefill ends
        ("left", "i4"),  # tokens it yields, the prefill's included
        ("computed", "i4"),  # of a partly prefilled prompt
        ("shared", "i4"),  # blocks it has through the prefix cache
        ("given", "i4"),  # 1: its prefill came from elsewhere
    ],
    align=True,
)
BLOCK = np.dtype(
    [("users", "i4"), ("present", "i4"), ("older", "i4"), ("newer", "i4")],  # older and newer: among the unused
    align=True,
)
STEP = np.dtype(
    [("start", "f8"), ("end", "f8"), ("replica", "i4"), ("decoding", "i4"), ("tokens", "i4"), ("waiting", "i4")],
    align=True,
)
LIMITS = np.dtype(
    [
        ("slots", "i8"),
        ("budget", "i8"),
        ("blocks", "i8"),  # of the KV cache; 0: no bound
        ("block_size", "i8"),
        ("chunked", "i8"),
        ("given", "i8"),  # prompts come with their KV cache computed
        ("max_waiting", "i8"),  # negative: no bound
        ("timeout", "f8"),  # negative: none
        ("round_robin", "i8"),
        ("decode_fixed", "f8"),
        ("decode_seq", "f8"),
        ("decode_ctx", "f8"),
        ("prefill_fixed", "f8"),
        ("prefill_seq", "f8"),
        ("prefill_token", "f8"),
        ("prefill_token2", "f8"),
        ("hidden", "f8"),
        ("prefill_mixed", "f8"),
        ("priorities", "i8"),
        ("mask", "i8"),  # the wheel's length less one; its length is a power of two
        ("growth", "i8"),  # where in a row the tables begin
        ("heads", "i8"),
        ("tails", "i8"),
        ("newest", "i8"),
        ("prefix_tokens", "i8"),  # per prefix block; 0: no prefix cache
        ("distinct", "i8"),
        ("think", "f8"),
        ("clients", "i8"),  # free clients; negative: as many as want to
        ("client", "i8"),  # the one that is free first
        ("turn", "i8"),  # of the round robin
        ("logged", "i8"),
    ],
    align=True,
)


class Prefix(NamedTuple):
    """Prefix blocks of the requests, and their state per replica."""

    offsets: NDArray[np.int64]
    ids: Ints
    blocks: Records


class World(NamedTuple):
    """Everything that a run changes; `limits` has one record, `free_at` is a ring of clients."""

    limits: Records
    requests: Records
    replicas: Records
    slots: Records
    tables: Ints
    prefix: Prefix
    free_at: NDArray[np.float64]
    log: Records


def world_of(
    requests: Requests, scheduler: Scheduler, model: StepModel, replicas: int, *, given: bool = False, log: int = 0
) -> World:
    """Empty engines, and the requests that will come. `given`: prompts come with their KV cache computed."""
    prefix = requests.prefix if scheduler.prefix_cache else None
    if prefix is not None and prefix.tokens % scheduler.block_size:
        raise ConfigError([Problem("block_size", f"{prefix.tokens} tokens of a prefix block are no whole blocks")])
    limits = np.zeros(1, dtype=LIMITS)
    for name, value in _settings(scheduler, model).items():
        limits[name] = value
    limits["given"] = given
    clients = requests.clients
    limits["clients"] = clients.in_flight if clients else -1
    limits["think"] = clients.think_s if clients else 0.0
    if prefix is not None:
        limits["prefix_tokens"], limits["distinct"] = prefix.tokens, prefix.distinct
    return World(
        limits,
        records_of(requests),
        _replicas(replicas, scheduler.max_num_seqs),
        _slots(replicas, scheduler.max_num_seqs),
        _tables(limits, requests, replicas),
        _prefix(prefix, replicas),
        np.zeros(clients.in_flight if clients else 1),
        np.zeros(log, dtype=STEP),
    )


def records_of(requests: Requests) -> Records:
    """The requests as they stand before the first one comes."""
    records = np.zeros(len(requests), dtype=REQUEST)
    for name in ("arrived", "prompt", "output", "priority"):
        records[name] = getattr(requests, name)
    for name in ("started", "first", "finished"):
        records[name] = -1.0
    records["behind"] = NOBODY
    records["replica"] = NOBODY
    return records


def _settings(scheduler: Scheduler, model: StepModel) -> dict[str, float]:
    return {
        "slots": scheduler.max_num_seqs,
        "budget": scheduler.token_budget,
        "blocks": scheduler.kv_blocks or 0,
        "block_size": scheduler.block_size,
        "chunked": scheduler.kind == "chunked",
        "max_waiting": -1 if scheduler.max_waiting is None else scheduler.max_waiting,
        "timeout": -1.0 if scheduler.queue_timeout_s is None else scheduler.queue_timeout_s,
        "round_robin": scheduler.dispatching == "round-robin",
        **step_times(model),
        "prefill_mixed": model.prefill.mixed_s,
    }


def step_times(model: StepModel) -> dict[str, float]:
    """A step model by the names that the compiled records have for it."""
    return {
        "decode_fixed": model.decode.fixed_s,
        "decode_seq": model.decode.seq_s,
        "decode_ctx": model.decode.ctx_token_s,
        "prefill_fixed": model.prefill.fixed_s,
        "prefill_seq": model.prefill.seq_s,
        "prefill_token": model.prefill.token_s,
        "prefill_token2": model.prefill.token2_s,
        "hidden": model.prefill.hidden_tokens,
    }


def _replicas(count: int, slots: int) -> Records:
    found = np.zeros(count, dtype=REPLICA)
    for name in ("partial", "firsts", "idle_oldest", "idle_newest"):
        found[name] = NOBODY
    found["vacant"] = np.arange(count) * slots
    return found


def _slots(count: int, slots: int) -> Records:
    found = np.zeros(count * slots, dtype=SLOT)
    found["next"] = np.arange(1, count * slots + 1)
    found["next"][slots - 1 :: slots] = NOBODY
    return found


def _tables(limits: Records, requests: Requests, replicas: int) -> Ints:
    one = limits[0]
    wheel = 1 << (int(requests.output.max()) + 2).bit_length()
    one["priorities"] = int(requests.priority.max()) + 1
    one["mask"] = wheel - 1
    at = wheel
    for name, length in (
        ("growth", one["block_size"]),
        ("heads", one["priorities"]),
        ("tails", one["priorities"]),
        ("newest", one["priorities"]),
    ):
        one[name] = at
        at += int(length)
    tables = np.full((replicas, at), NOBODY, dtype=np.int32)
    tables[:, one["growth"] : one["heads"]] = 0
    return tables


def _prefix(prefix: PrefixBlocks | None, replicas: int) -> Prefix:
    blocks = np.zeros(replicas * (prefix.distinct if prefix else 1), dtype=BLOCK)
    blocks["older"] = blocks["newer"] = NOBODY
    if prefix is None:
        return Prefix(np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int32), blocks)
    return Prefix(prefix.offsets, prefix.ids, blocks)
