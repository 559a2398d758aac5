"""What runs inside a replica: Ray's LLM servers, answering HTTP with the engine's own application.

Imported on replicas and by `deploy.tiers` when it builds an application: it needs Ray and vLLM.
"""

# The base that Ray's documentation has callbacks derive from; it is exported nowhere else.
from ray.llm._internal.common.callbacks.base import CallbackBase
from ray.serve.llm.deployment import LLMServer

from deploy.disconnect import AsgiApp, EndOnCancel


class EngineServer(LLMServer):  # type: ignore[misc]  # Ray ships without types
    """One engine that answers HTTP with its own application, and stops generating when the client leaves."""

    async def _start_engine(self) -> None:
        # The inherited method also starts a process that collects telemetry (400 MB).
        await self.engine.start()

    async def __serve_build_asgi_app__(self) -> AsgiApp:
        app = await super().__serve_build_asgi_app__()
        # The engine's application has built its middleware already; without this it would refuse another.
        app.middleware_stack = None
        app.add_middleware(EndOnCancel)
        return app  # type: ignore[no-any-return]


class OnDisk(CallbackBase):  # type: ignore[misc]
    """For weights that are on this machine: no process is started that would download them."""

    async def on_before_node_init(self) -> None:
        self.ctx.run_init_node = False
