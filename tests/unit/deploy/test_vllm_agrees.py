"""The rules for engine arguments are the installed vLLM's own: its classes refuse what we refuse and take the rest."""

from collections.abc import Callable
from typing import Any

import pytest

from core.config import validate
from deploy.combinations import check_combinations
from deploy.device import nixl_installed
from deploy.groups import groups
from deploy.tiers import llm_config
from tests.golden.layouts import LAYOUTS, document, rendered

vllm_config = pytest.importorskip("vllm.config", reason="vLLM is not installed: only the gateway is")

# The import of vLLM and Ray takes up to minutes on a busy machine, and warns of its own dependencies.
pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore::DeprecationWarning")]

CHAT = "/v1/chat/completions"
SCHEDULER = {"max_num_seqs": 8, "max_model_len": 2048, "max_num_batched_tokens": 2048, "enable_chunked_prefill": True}


def scheduler(engine: dict[str, Any]) -> object:
    return vllm_config.SchedulerConfig(**{**SCHEDULER, **engine}, is_encoder_decoder=False)


def speculative(engine: dict[str, Any]) -> object:
    return vllm_config.SpeculativeConfig(**engine["speculative_config"])


def cache(engine: dict[str, Any]) -> object:
    return vllm_config.CacheConfig(gpu_memory_utilization=engine["gpu_memory_utilization"])


def attention(engine: dict[str, Any]) -> object:
    return vllm_config.AttentionConfig(backend=engine["attention_backend"])


def parallel(engine: dict[str, Any]) -> object:
    return vllm_config.ParallelConfig(**engine, distributed_executor_backend="mp")


CASES: list[tuple[Callable[[dict[str, Any]], object], dict[str, Any], bool]] = [
    (scheduler, {}, True),
    (scheduler, {"max_num_batched_tokens": 8}, True),
    (scheduler, {"max_num_batched_tokens": 7}, False),
    (scheduler, {"max_num_batched_tokens": 2047, "enable_chunked_prefill": False}, False),
    (scheduler, {"max_num_batched_tokens": 2048, "enable_chunked_prefill": False}, True),
    (scheduler, {"long_prefill_token_threshold": 2048}, True),
    (scheduler, {"long_prefill_token_threshold": 2049}, False),
    (scheduler, {"max_num_seqs": 0}, False),
    (cache, {"gpu_memory_utilization": 1.0}, True),
    (cache, {"gpu_memory_utilization": 1.1}, False),
    (cache, {"gpu_memory_utilization": 0.0}, False),
    (attention, {"attention_backend": "FLASH_ATTN"}, True),
    (attention, {"attention_backend": "flash_attn"}, True),
    (attention, {"attention_backend": "FLASH_ATN"}, False),
    (parallel, {"tensor_parallel_size": 0}, False),
    (parallel, {"tensor_parallel_size": 8, "decode_context_parallel_size": 3}, False),
    (speculative, {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}, True),
    (
        speculative,
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 9}},
        True,
    ),
    (speculative, {"speculative_config": {"method": "ngram"}}, False),
    (speculative, {"speculative_config": {"method": "ngram", "num_speculative_tokens": 0}}, False),
    (speculative, {"speculative_config": {"num_speculative_tokens": 3}}, False),
    (speculative, {"speculative_config": {"method": "eagle", "num_speculative_tokens": 3}}, False),
    (speculative, {"speculative_config": {"method": "medusa", "num_speculative_tokens": 3}}, False),
    (speculative, {"speculative_config": {"method": "ngramm", "num_speculative_tokens": 3}}, False),
    (speculative, {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "k": 1}}, False),
    (
        speculative,
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "tensor_parallel_size": 1}},
        False,
    ),
    (
        speculative,
        {
            "speculative_config": {
                "method": "ngram",
                "num_speculative_tokens": 3,
                "prompt_lookup_min": 4,
                "prompt_lookup_max": 2,
            }
        },
        False,
    ),
]


@pytest.mark.parametrize(("build", "engine", "legal"), CASES)
def test_vllm_and_the_check_agree(
    build: Callable[[dict[str, Any]], object], engine: dict[str, Any], legal: bool
) -> None:
    whole = {**SCHEDULER, **engine} if build is scheduler else engine
    assert (check_combinations(whole, "engine", "gpu") == []) is legal
    if legal:
        build(engine)
        return
    with pytest.raises((ValueError, TypeError)):
        build(engine)


def test_the_file_of_arguments_is_the_installed_vllm_s() -> None:
    from deploy.engine_arguments import ARGUMENTS, installed, render

    assert ARGUMENTS.read_text(encoding="utf-8") == render(installed()), "run: python -m deploy.engine_arguments"


def test_adapters_are_what_the_engine_loads_when_it_starts() -> None:
    """vLLM's own registry of models gets each adapter under its name and path."""
    import asyncio

    from vllm.entrypoints.openai.models.protocol import BaseModelPath
    from vllm.entrypoints.openai.models.serving import OpenAIServingModels

    from core.config.records import Tier

    config = llm_config(Tier(model="m", adapters={"legal": "some/legal", "medical": "some/medical"}), "cpu")
    loaded: list[tuple[str, str]] = []

    class Engine:
        model_config = renderer = input_processor = None

        async def add_lora(self, request: Any) -> bool:
            loaded.append((request.lora_name, request.lora_path))
            return True

    frontend = config.get_engine_config().frontend_kwargs
    models = OpenAIServingModels(Engine(), [BaseModelPath("m", "m")], lora_modules=frontend["lora_modules"])
    asyncio.run(models.init_static_loras())
    assert loaded == [("legal", "some/legal"), ("medical", "some/medical")]
    assert config.engine_kwargs["enable_lora"] is True


def every_key(given: Any, read: Any, path: str = "") -> list[str]:
    """Keys of `given` that are not in `read`."""
    if isinstance(given, dict):
        missing = [f"{path}.{key}" for key in given if key not in read]
        return missing + [
            fault for key in given if key in read for fault in every_key(given[key], read[key], f"{path}.{key}")
        ]
    if isinstance(given, list):
        pairs = zip(given, read, strict=True)
        return [
            fault for index, (one, other) in enumerate(pairs) for fault in every_key(one, other, f"{path}[{index}]")
        ]
    return []


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_rendered_layout_is_a_configuration_of_serve_without_an_unknown_key(layout: str) -> None:
    import yaml
    from ray.serve.schema import ServeDeploySchema

    text = next(text for path, text in rendered(layout).items() if path.name.endswith(".serve.yaml"))
    config = yaml.safe_load(text)
    read = ServeDeploySchema.model_validate(config).model_dump(mode="json")
    assert every_key(config, read) == []
    assert every_key({"applications": [{"nonsense": 1}]}, {"applications": [{}]}) == [".applications[0].nonsense"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_group_of_a_layout_is_an_llm_config_whose_bundles_are_its_gpus(layout: str) -> None:
    from ray import serve
    from vllm.engine.arg_utils import AsyncEngineArgs

    total = 0
    for application in rendered_applications(layout):
        (tier,) = (tier for _, tier in validate(application["args"]["config"]).tiers.items())
        for group in groups(tier):
            config = llm_config(tier, "gpu", None, group)
            engine = config.get_engine_config()
            arguments = AsyncEngineArgs(model=tier.model, **engine.engine_kwargs)
            assert arguments.tensor_parallel_size * arguments.pipeline_parallel_size == engine.num_devices
            gpus = sum(bundle.get("GPU", 0) for bundle in engine.placement_bundles)
            assert gpus == group.gpus
            router = serve.deployment(Anything, **config.deployment_config)._deployment_config.request_router_config
            assert ("ConsistentHash" in str(router.request_router_class)) == (group.replicas.max > 1)
            total += gpus * group.replicas.max
    assert total == LAYOUTS[layout]


class Anything:
    """Something to deploy."""


def rendered_applications(layout: str) -> list[dict[str, Any]]:
    from deploy.render import serve_config

    return list(serve_config(document(layout))["applications"])


async def test_a_replica_starts_its_engine_and_serves_the_engine_s_own_routes() -> None:
    from fastapi import FastAPI
    from ray import serve

    from core.config.records import Tier
    from deploy.disconnect import EndOnCancel
    from deploy.server import EngineServer

    class Engine:
        started = 0

        async def start(self) -> None:
            self.started += 1

        async def build_asgi_app(self) -> FastAPI:
            app = FastAPI()
            app.add_api_route("/v1/chat/completions", lambda: "engine", methods=["POST"])
            app.add_api_route("/tokenize", lambda: "engine", methods=["POST"])
            app.middleware_stack = app.build_middleware_stack()
            return app

    # Ray's own `__del__` is a coroutine, which nobody would await here.
    kind = type("Replica", (EngineServer,), {"__del__": lambda _: None})
    replica = kind.__new__(kind)
    replica.engine, replica._llm_config = Engine(), llm_config(Tier(model="m"), "cpu")
    await replica._start_engine()
    assert replica.engine.started == 1
    assert issubclass(serve.ingress()(kind), kind)
    app = await replica.__serve_build_asgi_app__()
    assert EndOnCancel in [middleware.cls for middleware in app.user_middleware]
    assert app.build_middleware_stack() is not None
    routes = {route.path: route.endpoint.__module__ for route in app.routes if route.path in ("/tokenize", CHAT)}
    assert routes["/tokenize"] == __name__
    assert routes[CHAT] == __name__


def test_another_policy_may_decide_about_replicas() -> None:
    """Serve imports it and asks it, which is why a function of the standard library stands in for one here."""
    from ray import serve

    replicas = {"min": 1, "max": 3, "policy": "operator:itemgetter"}
    ((_, tier),) = validate({"tiers": {"small": {"model": "m", "replicas": replicas}}}).tiers.items()
    config = llm_config(tier, "gpu")
    scaling = serve.deployment(Anything, **config.deployment_config)._deployment_config.autoscaling_config
    assert (scaling.min_replicas, scaling.max_replicas) == (1, 3)
    assert scaling.policy.policy_function == "operator:itemgetter"


def test_the_connector_finds_nixl() -> None:
    """vLLM starts without it; a tier whose prefill and decode are apart then ends while it is starting."""
    from vllm.distributed.nixl_utils import NixlWrapper

    assert nixl_installed()
    assert NixlWrapper is not None
