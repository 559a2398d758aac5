"""Made-up numbers of a tier whose prefill and decode are apart, in the form in which Ray exports them.

Such a tier needs Ray and two engines; what its dashboard asks for is here so that its queries can be seen to work.
"""

import random
import threading
from types import TracebackType
from typing import Self

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

# (mode, reason) of a prompt, and how many in a hundred.
MODES = (("remote", "ok", 70), ("local", "short", 20), ("local", "cached", 8), ("fallback", "deadline", 2))
GROUPS = {"prefill:frontier": 3, "decode:frontier": 9}
RATE = 5.0


class ApartNumbers:
    """A context manager: serves them at `url` and lets them grow."""

    def __init__(self, seed: int = 0) -> None:
        registry = CollectorRegistry()
        self._random = random.Random(seed)
        self._prefill = Counter("ray_forebay_prefill_total", "made up", ("mode", "reason"), registry=registry)
        self._handoff = Histogram("ray_forebay_kv_handoff_seconds", "made up", registry=registry)
        self._orphaned = Gauge("ray_forebay_kv_orphaned_blocks", "made up", registry=registry)
        self._running = Gauge("ray_serve_replica_processing_queries", "made up", ("deployment",), registry=registry)
        self._kv = Gauge(
            "ray_vllm_kv_cache_usage_perc", "made up", ("model_name", "engine", "ReplicaId"), registry=registry
        )
        self._server, self._thread = start_http_server(0, "127.0.0.1", registry)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._end = threading.Event()
        self._work = threading.Thread(target=self._grow, daemon=True)

    def __enter__(self) -> Self:
        self._work.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._work.join()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _grow(self) -> None:
        while not self._end.wait(1 / RATE):
            mode, reason, _ = self._random.choices(MODES, [weight for _, _, weight in MODES])[0]
            self._prefill.labels(mode, reason).inc()
            if mode == "remote":
                self._handoff.observe(self._random.lognormvariate(-3.5, 0.5))
            self._orphaned.set(self._random.choice((0, 0, 0, 12)))
            for group, usual in GROUPS.items():
                self._running.labels(group).set(max(0, round(self._random.gauss(usual, 1))))
                self._kv.labels("apart-model", "0", f"{group}#1").set(self._random.uniform(0.3, 0.6))
