"""The configuration document as frozen, strict records: one class per section, every key with description and unit."""

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    PlainSerializer,
    WithJsonSchema,
    model_validator,
)

from core.config.addresses import SecretRef, ServerUrl, StoreUrl
from core.config.units import (
    DURATION_PATTERN,
    SIZE_PATTERN,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
)

TIER_NAMES = ("small", "frontier")
TierName = Literal["small", "frontier"]
Capability = Literal["text", "tools", "json", "vision"]

# In records a duration is in seconds and a size in bytes; in JSON both are written as people write them.
Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration, return_type=str, when_used="json-unless-none"),
    WithJsonSchema({"type": "string", "pattern": DURATION_PATTERN}),
]
Size = Annotated[
    int,
    BeforeValidator(parse_size),
    PlainSerializer(format_size, return_type=str, when_used="json-unless-none"),
    WithJsonSchema({"type": "string", "pattern": SIZE_PATTERN}),
]


class Record(BaseModel):
    """Frozen, strict, and closed to unknown keys."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", use_attribute_docstrings=True)


class Gateway(Record):
    """The HTTP server."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(8080, ge=0, le=65535)
    """TCP port; 0 takes a free one."""
    workers: int = Field(1, ge=1)
    """Gateway processes on one port. Each has queues, breakers and, in memory, a cache of its own; limits of keys need
    a shared auth.store."""
    max_body_size: Size = 4 * 1024**2
    """Largest request body; larger ones are refused with 413."""
    metrics_port: int | None = Field(None, ge=1, le=65535)
    """Separate port for /metrics; null serves it on the main port."""
    drain: Duration = 30.0
    """How long running streams may finish after SIGTERM."""
    sse_ping: Duration | None = None
    """Interval of `: ping` comments before the first token of a stream; null sends none."""


class Key(Record):
    """One client key. Exactly one of sha256, env and file says what the key is."""

    name: str = Field(min_length=1)
    """Shown in logs instead of the key."""
    tenant: str = Field(min_length=1)
    """Who pays; part of every cache key."""
    sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$")
    """Hex digest of the whole key."""
    env: str | None = None
    """Environment variable that holds the key."""
    file: str | None = None
    """File that holds the key."""
    admin: bool = False
    """May use /admin routes."""
    cache: bool = True
    """May read and write the response cache."""
    priority: Literal["high", "normal", "low"] = "normal"
    """Default and highest priority of this key's requests."""
    weight: float = Field(1, gt=0)
    """Share of a tier under contention, relative to other tenants."""
    concurrency: int | None = Field(None, ge=1)
    """Requests at one time; null is unlimited."""
    requests_per_minute: int | None = Field(None, ge=1)
    """Requests in any sliding 60 s; null is unlimited."""
    tokens_per_minute: int | None = Field(None, ge=1)
    """Tokens in any sliding 60 s; null is unlimited."""
    monthly_budget: float | None = Field(None, gt=0)
    """Cost per calendar month in the unit of the tiers' prices; null is unlimited."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if sum(v is not None for v in (self.sha256, self.env, self.file)) != 1:
            raise ValueError("exactly one of sha256, env and file must be given")
        return self


class Auth(Record):
    """Client keys. No keys means open to everyone who can reach the port."""

    store: StoreUrl = "memory"
    """Where limits are counted: memory, redis://…, rediss://… or redis+cluster://…"""
    keys: Annotated[tuple[Key, ...], Field(strict=False)] = ()
    """Keys that are accepted; empty is open, and /admin routes answer 403."""


class Exact(Record):
    """The exact layer: the same question, byte for byte of meaning."""

    enabled: bool = True
    """Look up and store exact answers."""
    ttl: Duration = 3600.0
    """How long an answer may be served."""


class Semantic(Record):
    """The semantic layer: another wording of the same question."""

    enabled: bool = True
    """Look up and store by meaning."""
    threshold: float = Field(0.80, ge=0, le=1)
    """Least cosine similarity (τ) of a candidate; the guard decides on top."""
    ttl: Duration = 3600.0
    """How long an answer may be served."""
    max_entries: int = Field(100_000, ge=1)
    """Vectors kept; the least recently used are dropped first."""
    deadline: Duration = 0.150
    """Time for embedding and search together; later is a miss."""
    guard: bool = True
    """Check each candidate with the pair verifier before serving it."""
    judge: TierName | None = None
    """Tier that is asked where the guard is unsure; null asks none."""
    shadow_rate: float = Field(0.0, ge=0, le=1)
    """Share of semantic hits that are also sent upstream and compared."""


class Cache(Record):
    """The response cache."""

    store: StoreUrl = "memory"
    """Where answers are kept: memory, or a Redis or Valkey server that gateways share: redis://host:6379/0, rediss://…
    (TLS), redis+cluster://… or rediss+cluster://…; the password as ${VARIABLE}, or the whole address by reference."""
    timeout: Duration = 0.050
    """Budget for one store operation."""
    max_bytes: Size = 512 * 1024**2
    """Memory for both layers together, in this process or in the store."""
    scope: Literal["tenant", "global"] = "tenant"
    """global replaces the tenant in cache keys."""
    exact: Exact = Exact()
    semantic: Semantic = Semantic()


class Embedder(Record):
    """The sentence embedding model that cache and router share."""

    model: str = "sentence-transformers/all-MiniLM-L6-v2"
    """Name of the model; part of the cache namespace."""
    source: str | None = None
    """Hub id or path; null is the packaged copy in eight bits where installed, else the model's hub id on torch."""
    batch_size: int = Field(32, ge=1)
    """Most texts in one forward pass."""
    max_wait: Duration = 0.002
    """How long texts that came during a pass wait for others to share the next; an idle embedder waits for nobody."""


class Labels(Record):
    """Comparisons of both tiers on production traffic, kept as training data."""

    path: str | None = None
    """File to append to, prompts included; rows stay until you delete them. null keeps none."""
    rate: float = Field(0.0, ge=0, le=1)
    """Share of small-tier answers that the frontier tier is asked for too, in the background."""

    @model_validator(mode="after")
    def _kept(self) -> Self:
        if self.rate > 0 and self.path is None:
            raise ValueError("rate needs a path to keep the labels in")
        return self


class Cascade(Record):
    """Ask the small tier first and escalate on low confidence."""

    enabled: bool = False
    """Escalate answers of the small tier."""
    threshold: float | None = Field(None, le=0)
    """Least mean token log-probability that is kept; null escalates the lowest quarter of recent answers."""
    tokens: int | None = Field(16, ge=1)
    """First tokens that decide; null is the whole answer."""
    deadline: Duration = 2.0
    """How long a stream may be held back for its first tokens, from its first content; then those that came decide."""


class Router(Record):
    """The complexity classifier."""

    classifier: str = "default"
    """default, or the path of a trained file."""
    threshold: float = Field(0.5, ge=0, le=1)
    """Complexity at or above which a request goes to the frontier tier."""
    sticky: bool = True
    """A conversation never moves down a tier."""
    labels: Labels = Labels()
    cascade: Cascade = Cascade()


class Console(Record):
    """The page at /console: for an administrator's key, or on this machine only where no keys are configured."""

    enabled: bool = True
    """Serve the page and keep what it shows."""
    show_prompts: bool = False
    """Keep and show the beginning of prompts and answers, to everyone who may see the page."""
    history: int = Field(200, ge=1, le=100_000)
    """Decisions shown to somebody who opens it."""


class Replicas(Record):
    """Autoscaling of one replica group."""

    min: int = Field(1, ge=0)
    """Least replicas."""
    max: int = Field(1, ge=1)
    """Most replicas."""
    target_ongoing_requests: int = Field(32, ge=1)
    """Requests per replica that autoscaling aims at."""
    policy: str | None = Field(None, pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
    """Import path (`module:function`) of a policy of Ray Serve's that decides instead, on any signals."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min ({self.min}) is above max ({self.max})")
        if self.policy is not None and self.min == self.max:
            raise ValueError(f"policy decides between min and max, which are both {self.max}")
        return self


class Queue(Record):
    """Admission to a tier, per gateway process."""

    max_inflight: int = Field(192, ge=1)
    """Requests inside the tier at one time."""
    max_waiting: int = Field(256, ge=0)
    """Requests that may wait in front of it."""
    max_wait: Duration = 10.0
    """Longest wait before a request is refused."""


class Timeout(Record):
    """How long to wait for a tier. That a limit is over is noticed within 50 ms."""

    connect: Duration = 2.0
    """For a connection."""
    first_token: Duration = 60.0
    """From sending the request to the first content byte (or, without streaming, the answer's headers)."""
    idle: Duration = 30.0
    """Between two chunks of an answer."""
    total: Duration = 600.0
    """For the whole answer."""


class Price(Record):
    """Cost per million tokens, in any one currency."""

    input: float = Field(0.0, ge=0)
    """Per million prompt tokens."""
    output: float = Field(0.0, ge=0)
    """Per million output tokens."""


class Group(Record):
    """Prefill or decode replicas of a disaggregated tier."""

    replicas: Replicas = Replicas()
    engine: Mapping[str, JsonValue] = Field(default_factory=dict)
    """vLLM engine arguments of this group, on top of the tier's."""


class Disaggregation(Record):
    """Prefill and decode as separate replica groups that hand over KV state."""

    connector: str = "NixlConnector"
    """vLLM KV connector."""
    prefill: Group = Group()
    decode: Group = Group()
    min_prompt_tokens: int = Field(256, ge=0)
    """Shorter prompts are prefilled where they decode."""
    prefill_deadline: Duration | None = 5.0
    """Time for the prefill leg; null is none."""
    on_prefill_failure: Literal["decode", "error"] = "decode"
    """Compute the prompt on the decode side, or fail."""


class Tier(Record):
    """One class of model."""

    model: str = Field(min_length=1)
    """The name clients see; unique across tiers."""
    source: str | None = None
    """Weights: hub id or path; null is the model's name."""
    urls: Annotated[tuple[ServerUrl, ...], Field(strict=False)] = ()
    """Servers that already run; empty means that `forebay deploy` or `forebay up` runs the tier."""
    api_key: SecretRef | None = None
    """Key for these servers, by reference."""
    adapters: Mapping[str, str] = Field(default_factory=dict)
    """LoRA adapters, name to folder or hub id; each name is a model too."""
    engine: Mapping[str, JsonValue] = Field(default_factory=dict)
    """vLLM engine arguments."""
    replicas: Replicas = Replicas()
    queue: Queue = Queue()
    timeout: Timeout = Timeout()
    fallback: TierName | None = None
    """The other tier, when this one has no replica; null is none."""
    price: Price = Price()
    capabilities: Annotated[tuple[Capability, ...], Field(strict=False)] = ("text", "tools", "json")
    """What the model can do; requests that need more go to the other tier."""
    context: int | None = Field(None, ge=1)
    """Context length in tokens; null asks the engine."""
    disaggregation: Disaggregation | None = None


class Tiers(Record):
    """One tier or both; with one, `auto` goes there."""

    small: Tier | None = None
    frontier: Tier | None = None

    def items(self) -> list[tuple[TierName, Tier]]:
        """The configured tiers by name, small first."""
        named: tuple[tuple[TierName, Tier | None], ...] = (("small", self.small), ("frontier", self.frontier))
        return [(name, tier) for name, tier in named if tier is not None]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        tiers = self.items()
        if not tiers:
            raise ValueError("no tier; give small, frontier or both")
        names = [name for _, tier in tiers for name in (tier.model, *tier.adapters)]
        taken: set[str] = set()
        for name in names:
            if name in ("auto", *TIER_NAMES):
                raise ValueError(f"the model name {name!r} is reserved: auto, small and frontier choose a tier")
            if name in taken:
                raise ValueError(f"the model name {name!r} is not unique: it names another tier, model or adapter")
            taken.add(name)
        for name, tier in tiers:
            if tier.fallback and (tier.fallback == name or len(tiers) == 1):
                raise ValueError(f"{name}.fallback must be the other tier, and that tier must be configured")
        return self


class Config(Record):
    """The whole document."""

    tiers: Tiers
    gateway: Gateway = Gateway()
    auth: Auth = Auth()
    cache: Cache = Cache()
    embedder: Embedder = Embedder()
    router: Router = Router()
    console: Console = Console()

    @model_validator(mode="after")
    def _two_tiers(self) -> Self:
        wanted = self.router.cascade.enabled or self.router.labels.rate > 0
        if wanted and len(self.tiers.items()) < 2:
            raise ValueError("router.cascade.enabled and router.labels.rate need both tiers")
        return self
