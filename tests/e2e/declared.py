"""Runs a Serve configuration as KubeRay does, on a Ray of this machine: `python -m tests.e2e.declared FILE`.

The file holds `serveConfigV2`. Serve's controller builds each application from its import path and arguments, in a
process of the cluster, as it would in a pod. Prints what each tier answered, as JSON.
"""

import json
import sys
from pathlib import Path
from typing import Any

import httpx
import yaml

from core.config import validate
from deploy.local import LocalCluster, short_directory
from tests.e2e.waiting import until


def main(path: str) -> None:
    """Deploy, wait, ask every tier once."""
    rendered: dict[str, Any] = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    tiers = {name: tier for app in rendered["applications"] for name, tier in app["args"]["config"]["tiers"].items()}
    document: dict[str, Any] = {"tiers": tiers}
    with LocalCluster(validate(document), document, short_directory()) as cluster:
        from ray import serve
        from ray.serve.context import _get_global_client
        from ray.serve.schema import ServeDeploySchema

        _get_global_client().deploy_apps(ServeDeploySchema.model_validate(rendered))

        def running() -> bool:
            found = serve.status().applications
            failed = {name: app.message for name, app in found.items() if app.status.value == "DEPLOY_FAILED"}
            if failed:
                raise SystemExit(f"not deployed: {failed}")
            return set(found) == set(tiers) and all(app.status.value == "RUNNING" for app in found.values())

        until(running, within=900, every=1)
        answers = {name: _answer(url, tiers[name]["model"]) for name, url in cluster.urls.items()}
        sys.stdout.write(f"{json.dumps(answers)}\n")


def _answer(url: str, model: str) -> dict[str, Any]:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "max_tokens": 32,
    }
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=300, trust_env=False)
    found: dict[str, Any] = answer.raise_for_status().json()
    return {"model": found["model"], "text": found["choices"][0]["message"]["content"]}


if __name__ == "__main__":
    main(sys.argv[1])
