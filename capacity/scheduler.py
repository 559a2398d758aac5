"""How requests are put into batches: every kind, with its limits."""

from dataclasses import dataclass, field
from typing import Literal

from core.errors import ConfigError, Problem

Kind = Literal["static", "fixed", "window", "work-conserving", "continuous", "chunked", "disaggregated"]
Dispatch = Literal["shared", "least-outstanding", "round-robin"]

KINDS: tuple[Kind, ...] = ("static", "fixed", "window", "work-conserving", "continuous", "chunked", "disaggregated")
# One service per batch: the answer of every request in it comes at its end.
BATCHES: tuple[Kind, ...] = ("static", "fixed", "window", "work-conserving")
DISPATCHES: tuple[Dispatch, ...] = ("shared", "least-outstanding", "round-robin")
WINDOWS = ("close", "hold")


@dataclass(frozen=True)
class Transfer:
    """Seconds to bring a prompt's KV cache from a prefill to a decode replica: once, and per token."""

    fixed_s: float = 0.0
    token_s: float = 0.0


@dataclass(frozen=True)
class Scheduler:
    """A scheduler and its limits. None: no limit, or for the token budget the kind's default.

    Batches, lengths ignored, one service `decode.fixed_s + decode.seq_s * B`:
      `fixed` waits for `max_num_seqs` requests; `window` closes at `max_num_seqs` or `max_wait_s` after its first
      request (`close`: also while every server is busy; `hold`: keeps filling until a server is free);
      `work-conserving` takes up to `max_num_seqs` whenever a server is free.
    `static`: as `work-conserving`, and the batch runs until its longest answer ends; nobody joins or leaves.
    Iterations: `continuous` lets requests join and leave at every step, prompts prefilled whole beside the decoding
    ones; `chunked` splits prompts to the step's token budget; `disaggregated` prefills on `prefill_replicas`, hands the
    KV cache over (`transfer`) and decodes on `replicas`.
    """

    kind: Kind = "continuous"
    max_num_seqs: int = 256
    max_num_batched_tokens: int | None = None
    kv_blocks: int | None = None
    block_size: int = 16
    prefix_cache: bool = False
    max_wait_s: float | None = None
    window: Literal["close", "hold"] = "close"
    replicas: int = 1
    dispatch: Dispatch | None = None
    max_waiting: int | None = None
    queue_timeout_s: float | None = None
    prefill_replicas: int = 1
    transfer: Transfer = field(default_factory=Transfer)

    def __post_init__(self) -> None:
        problems = [*self._words(), *self._numbers()]
        if self.kind == "window" and self.max_wait_s is None:
            problems.append(Problem("max_wait", "missing; a window needs the time after which it closes"))
        if self.kind in BATCHES and self.queue_timeout_s is not None:
            problems.append(Problem("queue_timeout", "is for engines; a batch server has only --max-waiting"))
        if self.kind not in BATCHES:
            if self.dispatch == "shared":
                problems.append(Problem("dispatch", "shared is for batches; an engine has its own queue"))
            if self.token_budget < self.max_num_seqs:
                least = f"{self.token_budget} is less than max_num_seqs, {self.max_num_seqs}"
                problems.append(Problem("max_num_batched_tokens", f"{least}: a step could not decode all"))
        if problems:
            raise ConfigError(problems)

    @property
    def token_budget(self) -> int:
        """Tokens of one step: as given, else vLLM's defaults, 2,048 where prompts are chunked and 8,192 where not."""
        if self.max_num_batched_tokens is not None:
            return self.max_num_batched_tokens
        return max(2048 if self.kind == "chunked" else 8192, self.max_num_seqs)

    @property
    def dispatching(self) -> Dispatch:
        """How replicas share the requests: batches are cut from one queue, engines are chosen at arrival."""
        return self.dispatch or ("shared" if self.kind in BATCHES else "least-outstanding")

    def settings(self) -> dict[str, str | int | float | bool | None]:
        """What of an engine's own settings this scheduler states, by vLLM's names; for `StepModel.mismatches`."""
        if self.kind in BATCHES:
            return {}
        return {
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.token_budget,
            "block_size": self.block_size,
            "enable_chunked_prefill": self.kind == "chunked",
            "enable_prefix_caching": self.prefix_cache,
        }

    def _words(self) -> list[Problem]:
        choices: dict[str, tuple[str, tuple[str, ...]]] = {
            "scheduler": (self.kind, KINDS),
            "window": (self.window, WINDOWS),
        }
        if self.dispatch is not None:
            choices["dispatch"] = (self.dispatch, DISPATCHES)
        return [
            Problem(name, f"{value!r} is unknown; legal are {', '.join(legal)}")
            for name, (value, legal) in choices.items()
            if value not in legal
        ]

    def _numbers(self) -> list[Problem]:
        least = {
            "max_num_seqs": (self.max_num_seqs, 1),
            "max_num_batched_tokens": (self.max_num_batched_tokens, 1),
            "kv_blocks": (self.kv_blocks, 1),
            "block_size": (self.block_size, 1),
            "max_wait": (self.max_wait_s, 0),
            "replicas": (self.replicas, 1),
            "prefill_replicas": (self.prefill_replicas, 1),
            "max_waiting": (self.max_waiting, 0),
            "queue_timeout": (self.queue_timeout_s, 0),
            "transfer.fixed": (self.transfer.fixed_s, 0),
            "transfer.token": (self.transfer.token_s, 0),
        }
        return [
            Problem(name, f"{value!r}; legal is a number from {low}")
            for name, (value, low) in least.items()
            if value is not None and not value >= low
        ]
