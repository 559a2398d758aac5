"""What runs inside a replica: Ray's LLM servers, answering HTTP with the engine's own application.

Imported on replicas and by `deploy.tiers` when it builds an application: it needs Ray and vLLM.
"""

# The base that Ray's documentation has callbacks derive from; it is exported nowhere else.
from ray.llm._internal.common.callbacks.base import CallbackBase
from ray.serve.llm.deployment import LLMServer, PDDecodeServer, PDPrefillServer

from deploy.disconnect import AsgiApp, EndOnCancel


class _Quiet:
    """Starts the engine only: the inherited method also starts a process that collects telemetry (400 MB)."""

    async def _start_engine(self) -> None:
        await self.engine.start()  # type: ignore[attr-defined]  # of the server it is mixed into


class _Http(_Quiet):
    """Answers HTTP with the engine's own application, and stops generating when the client leaves."""

    async def __serve_build_asgi_app__(self) -> AsgiApp:
        app = await super().__serve_build_asgi_app__()  # type: ignore[misc]  # of the server it is mixed into
        # The engine's application has built its middleware already; without this it would refuse another.
        app.middleware_stack = None
        app.add_middleware(EndOnCancel)
        return app  # type: ignore[no-any-return]


class EngineServer(_Http, LLMServer):  # type: ignore[misc]  # Ray ships without types
    """One engine that prefills and decodes."""


class PrefillServer(_Quiet, PDPrefillServer):  # type: ignore[misc]
    """One engine that prefills for decode replicas; only they ask it."""


class DecodeServer(_Http, PDDecodeServer):  # type: ignore[misc]
    """One engine that decodes. Chat and text completions are prefilled elsewhere first, other routes here."""


class OnDisk(CallbackBase):  # type: ignore[misc]
    """For weights that are on this machine: no process is started that would download them."""

    async def on_before_node_init(self) -> None:
        self.ctx.run_init_node = False
