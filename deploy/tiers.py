"""From a tier's configuration to an application of Ray Serve, by the public API of `ray.serve.llm`.

One application per tier, and in it one deployment per replica group. Where prefill and decode share an engine, its
replicas answer HTTP with vLLM's own application, so every route of the engine is there and nothing is parsed or batched
on the way. Where they are apart, the decode replicas answer, and ask a prefill replica for the prompt's KV state.
"""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.config import Tier
from core.config.records import Replicas
from deploy.device import Device, cpu_engine, cpu_environment
from deploy.groups import Group, groups
from deploy.handover import handing_over, settings
from deploy.pinning import bundle
from deploy.weights import PACKAGED

if TYPE_CHECKING:
    from ray.serve import Application
    from ray.serve.llm import LLMConfig

# CPUs that one CPU replica asks of Ray: its own and its engine's. Bookkeeping, not threads.
CPUS_PER_REPLICA = 2
# Tensor parallelism talks between GPUs at every layer: up to the size of a usual node, never across nodes.
_NODE_GPUS = 8
# Ray's own: requests of a session (the gateway names it) go to one replica, and to the next when that one is full.
_AFFINITY = "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"
# vLLM's default for one GPU; a replica is full with as many requests again in its queue.
_MAX_NUM_SEQS = 256
# Rounded up by Serve: one replica more than there should be while a tier is updated.
_SURGE = 1
# Seconds that a replica is kept after the load has fallen. It takes minutes to start one; Serve's default is ten.
_KEPT = 120.0
# Where connectors of a group listen on a node: each replica adds its rank, so the groups' ranges lie apart.
_PORTS = {"prefill": 20_000, "decode": 22_000}


def llm_arguments(tier: Tier, group: Group, device: Device, source: str | None = None) -> dict[str, Any]:
    """A replica group as Ray Serve LLM describes it, in terms of JSON: the arguments of its `LLMConfig`.

    `source` replaces the tier's own, where it was found on this machine.
    """
    local, engine = on_disk(tier, source), engine_arguments(tier, device, group)
    variables = environment(device, offline=local)
    arguments: dict[str, Any] = {
        "model_loading_config": {"model_id": tier.model, "model_source": source or tier.source or tier.model},
        "accelerator_config": {"kind": device},
        "engine_kwargs": {**engine, **_adapters(tier), **_handoff(tier, device)},
        "deployment_config": {**deployment(tier, group.replicas), **affinity(group, engine)},
        "log_engine_metrics": True,
    }
    if device == "gpu":
        arguments["placement_group_config"] = placement(tier, group)
    if tier.disaggregation is not None:
        arguments["experimental_configs"] = {"NIXL_SIDE_CHANNEL_PORT_BASE": _PORTS[group.role]}
        # Without shared GPU memory, between processes of one machine or over TCP.
        variables |= {"UCX_TLS": "tcp,self,sm"} if device == "cpu" else {}
    if local:
        arguments["callback_config"] = {"callback_class": "deploy.server.OnDisk"}
    return {**arguments, "runtime_env": {"env_vars": variables}}


def llm_config(tier: Tier, device: Device, source: str | None = None, group: Group | None = None) -> "LLMConfig":
    """The `LLMConfig` of a replica group; of the tier's first where none is given."""
    # Heavy: imports vLLM.
    from ray.serve.llm import LLMConfig  # noqa: PLC0415
    from vllm.entrypoints.openai.models.protocol import LoRAModulePath  # noqa: PLC0415

    arguments = llm_arguments(tier, group or groups(tier)[0], device, source)
    engine = arguments["engine_kwargs"]
    if "lora_modules" in engine:
        # What serves the engine's HTTP reads attributes.
        engine["lora_modules"] = [LoRAModulePath(**module) for module in engine["lora_modules"]]
    return LLMConfig(**arguments)


def application(tier: Tier, device: Device, source: str | None = None) -> "Application":
    """The tier's application, to be run under a route prefix of its own. Raises ConfigError, ValueError."""
    # Heavy, as above.
    from ray import serve  # noqa: PLC0415
    from ray.serve.llm import build_llm_deployment  # noqa: PLC0415

    from deploy.apart import DecodeServer, PrefillServer  # noqa: PLC0415
    from deploy.server import EngineServer  # noqa: PLC0415

    front, *rest = reversed(groups(tier))
    config = llm_config(tier, device, source, front)
    # Without an argument, `serve.ingress` serves the application that the engine builds.
    if not rest:
        return build_llm_deployment(config, name_prefix="engine:", deployment_cls=serve.ingress()(EngineServer))
    (prefill,) = rest
    before = build_llm_deployment(
        llm_config(tier, device, source, prefill), name_prefix="prefill:", deployment_cls=PrefillServer
    )
    return build_llm_deployment(
        config,
        name_prefix="decode:",
        bind_kwargs={"prefill_server": before, "settings": asdict(settings(tier, config.engine_kwargs))},
        deployment_cls=serve.ingress()(DecodeServer),
    )


def engine_arguments(tier: Tier, device: Device, group: Group | None = None) -> dict[str, Any]:
    """The engine arguments of a group, or of the tier, over the defaults of the device; with adapters, LoRA is on."""
    defaults = cpu_engine() if device == "cpu" else {}
    return {
        **defaults,
        **({"enable_lora": True} if tier.adapters else {}),
        **(tier.engine if group is None else group.engine),
    }


def _adapters(tier: Tier) -> dict[str, Any]:
    modules = [{"name": name, "path": path} for name, path in tier.adapters.items()]
    return {"lora_modules": modules} if modules else {}


def _handoff(tier: Tier, device: Device) -> dict[str, Any]:
    if tier.disaggregation is None:
        return {}
    return handing_over(tier.disaggregation, device)


def placement(tier: Tier, group: Group) -> dict[str, Any]:
    """Ray's placement group of one engine: a bundle per GPU, on one node where the engine fits there."""
    together = group.engine.get("pipeline_parallel_size", 1) == 1 and group.gpus <= _NODE_GPUS
    return {"bundles": [bundle(tier, group)] * group.gpus, "strategy": "STRICT_PACK" if together else "PACK"}


def affinity(group: Group, engine: dict[str, Any]) -> dict[str, Any]:
    """Serve's options that keep a session on one of several replicas, whose prefix cache knows its beginning."""
    if group.replicas.max == 1:
        return {}
    running = engine.get("max_num_seqs")
    return {
        "max_ongoing_requests": 2 * (running if isinstance(running, int) else _MAX_NUM_SEQS),
        "request_router_config": {"request_router_class": _AFFINITY},
    }


def deployment(tier: Tier, replicas: Replicas | None = None) -> dict[str, Any]:
    """Serve's deployment options: replicas, and no access log (the gateway writes one line per request).

    A replica that is replaced or no longer needed ends when its answers have: none takes longer than `timeout.total`.
    A replacement is started first, one at a time.
    """
    replicas = replicas or tier.replicas
    options: dict[str, Any] = {
        "graceful_shutdown_timeout_s": tier.timeout.total,
        "max_surge_percent": _SURGE,
        "logging_config": {"enable_access_log": False},
    }
    if replicas.min == replicas.max:
        return {**options, "num_replicas": replicas.min}
    return {
        **options,
        "autoscaling_config": {
            "min_replicas": replicas.min,
            "max_replicas": replicas.max,
            "target_ongoing_requests": replicas.target_ongoing_requests,
            "downscale_delay_s": _KEPT,
            **({} if replicas.policy is None else {"policy": {"policy_function": replicas.policy}}),
        },
    }


def environment(device: Device, *, offline: bool) -> dict[str, str]:
    """Environment variables of a replica and its engine. `offline`: no model hub is asked for anything."""
    always = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "RAYLLM_ENABLE_REQUEST_PROMPT_LOGS": "0"}
    return {
        **always,
        **(cpu_environment() if device == "cpu" else {}),
        **({"HF_HUB_OFFLINE": "1"} if offline else {}),
    }


def on_disk(tier: Tier, source: str | None = None) -> bool:
    """Whether the weights are a folder on this machine."""
    return Path(source or tier.source or tier.model).is_dir()


def is_packaged(tier: Tier) -> bool:
    """Whether the tier wants the demonstration weights."""
    return tier.source == PACKAGED
