"""The simulator's scheduling rules for one engine, written token by token and without haste: its oracle."""

from dataclasses import dataclass, field

from capacity.scheduler import Scheduler
from capacity.step_model import StepModel
from capacity.workload import Requests


@dataclass(eq=False)
class Sequence:
    """A request as the plain engine sees it."""

    arrived: float
    prompt: int
    output: int
    priority: int
    hashes: tuple[int, ...]
    tokens: int = 0  # yielded
    computed: int = 0  # in the KV cache
    held: int = 0  # tokens that there are blocks for
    decoding: bool = False
    shared: tuple[int, ...] = ()
    started: float = -1.0
    first: float = -1.0
    finished: float = -1.0
    outcome: str = "pending"
    preempted: int = 0


@dataclass
class PlainEngine:
    """One replica of `continuous` or `chunked`, fed by an open loop. Prefix blocks have `prefix_tokens` tokens.

    `given`: prompts come with their KV cache computed, but for their last token.
    """

    scheduler: Scheduler
    model: StepModel
    prefix_tokens: int = 0
    given: bool = False
    queue: list[Sequence] = field(default_factory=list)
    running: list[Sequence] = field(default_factory=list)  # in order of admission
    users: dict[int, int] = field(default_factory=dict)  # of each prefix block in the cache
    idle: list[int] = field(default_factory=list)  # those with none, the longest unused first

    def run(self, requests: Requests) -> list[Sequence]:
        coming, now = _sequences(requests), 0.0
        everyone = list(coming)
        while coming or self.running or self.queue:
            while coming and coming[0].arrived <= now:
                self.arrive(coming.pop(0))
            work = self.plan(now)
            if not work:
                now = coming[0].arrived
                continue
            end = now + self.duration(work)
            while coming and coming[0].arrived < end:
                self.arrive(coming.pop(0))
            self.end(work, end)
            now = end
        return everyone

    def arrive(self, one: Sequence) -> None:
        limits = self.scheduler
        if limits.kv_blocks is not None and -(-(one.prompt + one.output) // limits.block_size) > limits.kv_blocks:
            one.outcome = "too_long"
        elif (
            limits.max_waiting is not None
            and len(self.running) + len(self.queue) >= limits.max_num_seqs + limits.max_waiting
        ):
            one.outcome = "rejected"
        else:
            self.queue.append(one)

    def plan(self, now: float) -> list[tuple[Sequence, int]]:
        """Who gets how many tokens in the step that starts now."""
        preempted = self.make_room()
        work = []
        for one in self.running:
            if one.decoding:
                one.held = one.computed + 1
                work.append((one, 1))
        budget = self.scheduler.token_budget - len(work)
        for one in self.running:
            if not one.decoding:
                tokens = min(budget, one.prompt + one.tokens - one.computed)
                work.append((one, tokens))
                budget -= tokens
        prefilling = len(work) > sum(one.decoding for one, _ in work)
        self.queue.sort(key=lambda one: one.priority)
        while self.queue and not preempted and len(self.running) < self.scheduler.max_num_seqs and budget > 0:
            one = self.queue[0]
            goal = one.prompt + one.tokens
            cached = min(self.hits(one) * self.prefix_tokens, goal - 1) if self.prefix_tokens else 0
            fresh = goal - cached
            alone = fresh > self.scheduler.token_budget and not prefilling
            given = self.given and not one.preempted
            if fresh > budget and self.scheduler.kind != "chunked" and not alone and not given:
                break
            if not self.take(one, goal):
                break
            self.queue.pop(0)
            self.running.append(one)
            one.started = now if one.started < 0 else one.started
            one.computed = cached
            if given:
                one.computed, one.decoding = one.prompt - 1, True
                work.append((one, 1))
                budget -= 1
                continue
            tokens = min(fresh, budget) if self.scheduler.kind == "chunked" else fresh
            work.append((one, tokens))
            budget -= tokens
            prefilling = True
        return work

    def duration(self, work: list[tuple[Sequence, int]]) -> float:
        decode, prefill = self.model.decode, self.model.prefill
        decoding = [one for one, _ in work if one.decoding]
        prompts = [(one, tokens) for one, tokens in work if not one.decoding]
        fixed = max(decode.fixed_s if decoding else 0.0, prefill.fixed_s if prompts else 0.0)
        total = fixed + decode.seq_s * len(decoding) + decode.ctx_token_s * sum(one.computed + 1 for one in decoding)
        total += prefill.mixed_s if decoding and prompts else 0.0
        hidden = max(prefill.hidden_tokens - len(decoding), 0.0)
        total += prefill.token_s * max(sum(tokens for _, tokens in prompts) - hidden, 0.0)
        for one, tokens in prompts:
            total += prefill.token2_s * ((one.computed + tokens) ** 2 - one.computed**2)
            total += prefill.seq_s if one.computed + tokens == one.prompt + one.tokens else 0.0
        return total

    def end(self, work: list[tuple[Sequence, int]], now: float) -> None:
        for one, tokens in work:
            one.computed += tokens
            if one.decoding or one.computed == one.prompt + one.tokens:
                one.decoding = True
                one.tokens += 1
                one.first = now if one.first < 0 else one.first
        # Of those that end together, the one admitted last gives its blocks back first.
        for one in [one for one in reversed(self.running) if one.tokens == one.output]:
            one.finished, one.outcome = now, "done"
            self.leave(one)

    def make_room(self) -> bool:
        """Put sequences back until each decoding one has a block for its next token."""
        preempted = False
        while self.scheduler.kv_blocks is not None:
            extra = sum(
                self.private(one.computed + 1, one) - self.private(one.computed, one)
                for one in self.running
                if one.decoding
            )
            if self.fits(extra):
                break
            victim = max(self.running, key=lambda one: (one.priority, self.running.index(one)))
            self.leave(victim)
            victim.computed, victim.held, victim.decoding = 0, 0, False
            victim.preempted += 1
            self.queue.insert(0, victim)
            preempted = True
        return preempted

    def private(self, tokens: int, one: Sequence) -> int:
        size = self.scheduler.block_size
        return max(-(-tokens // size) - len(one.shared) * (self.prefix_tokens // size), 0)

    def fits(self, extra: int) -> bool:
        """Whether there is room for that many blocks, idle prefix blocks given up as needed."""
        unit = self.prefix_tokens // self.scheduler.block_size
        limit = self.scheduler.kv_blocks
        used = sum(self.private(one.held, one) for one in self.running) + unit * len(self.users) + extra
        while limit is not None and used > limit and self.idle:
            del self.users[self.idle.pop(0)]
            used -= unit
        return limit is None or used <= limit

    def hits(self, one: Sequence) -> int:
        found = 0
        for block in one.hashes[: one.prompt // self.prefix_tokens]:
            if block not in self.users:
                break
            found += 1
        return found

    def take(self, one: Sequence, goal: int) -> bool:
        mine = one.hashes[: one.prompt // self.prefix_tokens] if self.prefix_tokens else ()
        unit = self.prefix_tokens // self.scheduler.block_size
        kept_idle, kept_users = list(self.idle), dict(self.users)
        for block in mine:
            if block in self.idle:
                self.idle.remove(block)
            self.users[block] = self.users.get(block, 0) + 1
        one.shared = mine
        if self.fits(max(-(-goal // self.scheduler.block_size) - len(mine) * unit, 0)):
            one.held = goal
            return True
        self.idle, self.users, one.shared = kept_idle, kept_users, ()
        return False

    def leave(self, one: Sequence) -> None:
        self.running.remove(one)
        for block in reversed(one.shared):
            self.users[block] -= 1
            if self.users[block] == 0:
                self.idle.append(block)
        one.shared = ()


def _sequences(requests: Requests) -> list[Sequence]:
    prefix = requests.prefix
    return [
        Sequence(
            float(requests.arrived[i]),
            int(requests.prompt[i]),
            int(requests.output[i]),
            int(requests.priority[i]),
            tuple(prefix.ids[prefix.offsets[i] : prefix.offsets[i + 1]].tolist()) if prefix is not None else (),
        )
        for i in range(len(requests))
    ]
