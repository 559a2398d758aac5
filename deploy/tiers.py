"""From a tier's configuration to an application of Ray Serve, by the public API of `ray.serve.llm`.

One application per tier. Its deployment is the engine: each replica answers HTTP with vLLM's own application, so every
route of the engine is there and nothing is parsed or batched on the way. A tier whose prefill and decode are apart has
two: the decode side answers HTTP and asks the prefill side.
"""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.config import Tier
from deploy.device import Device, cpu_engine, cpu_environment
from deploy.groups import Role, group, handing_over, handoff_environment, settings, side_channel
from deploy.weights import PACKAGED

if TYPE_CHECKING:
    from ray.serve import Application
    from ray.serve.llm import LLMConfig

# CPUs that one CPU replica asks of Ray: its own and its engine's. Bookkeeping, not threads.
CPUS_PER_REPLICA = 2


def llm_config(tier: Tier, device: Device, source: str | None = None) -> "LLMConfig":
    """The tier as Ray Serve LLM describes it. `source` replaces the tier's own, where it was found on this machine."""
    # Heavy: imports vLLM.
    from ray.serve.llm import LLMConfig  # noqa: PLC0415

    return LLMConfig(
        model_loading_config={"model_id": tier.model, "model_source": source or tier.source or tier.model},
        accelerator_config={"kind": device},
        engine_kwargs=engine_arguments(tier, device),
        deployment_config=deployment(tier),
        runtime_env={"env_vars": environment(device, offline=on_disk(tier, source))},
        log_engine_metrics=True,
        **({"callback_config": {"callback_class": "deploy.server.OnDisk"}} if on_disk(tier, source) else {}),
    )


def application(name: str, tier: Tier, device: Device, source: str | None = None) -> "Application":
    """The application of tier `name`, to be run under a route prefix of its own. Raises ConfigError, ValueError."""
    # Heavy, as above.
    from ray import serve  # noqa: PLC0415
    from ray.serve.llm import build_llm_deployment  # noqa: PLC0415

    from deploy.server import EngineServer  # noqa: PLC0415

    if tier.disaggregation is not None:
        return _apart(name, tier, device, source)
    # Without an argument, `serve.ingress` serves the application that the engine builds.
    return build_llm_deployment(
        llm_config(tier, device, source), name_prefix="engine:", deployment_cls=serve.ingress()(EngineServer)
    )


def _apart(name: str, tier: Tier, device: Device, source: str | None) -> "Application":
    """Two deployments: clients reach the decode side, which has a handle of the prefill side."""
    # Heavy, as above.
    from ray import serve  # noqa: PLC0415
    from ray.serve.llm import build_llm_deployment  # noqa: PLC0415

    from deploy.apart import DecodeServer, PrefillServer  # noqa: PLC0415

    prefill = build_llm_deployment(
        group_config(name, tier, "prefill", device, source), name_prefix="prefill:", deployment_cls=PrefillServer
    )
    decode = group_config(name, tier, "decode", device, source)
    bound = {"prefill_server": prefill, "settings": asdict(settings(tier, decode.engine_kwargs))}
    return build_llm_deployment(
        decode, name_prefix="decode:", bind_kwargs=bound, deployment_cls=serve.ingress()(DecodeServer)
    )


def group_config(name: str, tier: Tier, role: Role, device: Device, source: str | None = None) -> "LLMConfig":
    """One group of a tier whose prefill and decode are apart, as Ray Serve LLM describes it."""
    apart = tier.disaggregation
    assert apart is not None  # noqa: S101  # the caller has looked
    config = llm_config(group(tier, role), device, source)
    config.engine_kwargs.update(handing_over(apart.connector, device))
    config.experimental_configs["NIXL_SIDE_CHANNEL_PORT_BASE"] = side_channel(name, role)
    config.runtime_env["env_vars"].update(handoff_environment(device))
    return config


def engine_arguments(tier: Tier, device: Device) -> dict[str, Any]:
    """The tier's engine arguments, over the defaults of the device."""
    defaults = cpu_engine() if device == "cpu" else {}
    return {**defaults, **tier.engine}


def deployment(tier: Tier) -> dict[str, Any]:
    """Serve's deployment options: replicas, and no access log (the gateway writes one line per request)."""
    replicas = tier.replicas
    options: dict[str, Any] = {"logging_config": {"enable_access_log": False}}
    if replicas.min == replicas.max:
        return {**options, "num_replicas": replicas.min}
    return {
        **options,
        "autoscaling_config": {
            "min_replicas": replicas.min,
            "max_replicas": replicas.max,
            "target_ongoing_requests": replicas.target_ongoing_requests,
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
