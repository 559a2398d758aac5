"""A local cluster whose tiers change while it runs: `python -m tests.soak.cluster DOCUMENT`, told what to do on stdin.

A line on stdin is `status`, or a JSON document that takes the place of the one before. Each is answered by a line of
JSON on stdout. The end of stdin ends the cluster.
"""

import contextlib
import json
import sys
from typing import Any

from core.config import validate
from deploy.local import LocalCluster, deploy_tiers, short_directory


def main() -> None:
    document = json.loads(sys.argv[1])
    # Whatever else writes there, the answers are this process's.
    answers = sys.stdout

    def say(answer: dict[str, Any]) -> None:
        answers.write(f"{json.dumps(answer)}\n")
        answers.flush()

    with (
        contextlib.redirect_stdout(sys.stderr),
        LocalCluster(validate(document), document, short_directory()) as cluster,
    ):
        cluster.deploy(lambda *_: None, lambda: None)
        say({"urls": cluster.urls})
        for line in sys.stdin:
            if line.strip() == "status":
                answer = status()
            else:
                update(json.loads(line))
                answer = {}
            say(answer)


def status() -> dict[str, Any]:
    """Each application's state, and how many replicas its deployments have in which."""
    from ray import serve

    return {
        name: {
            "status": application.status.value,
            "replicas": {
                deployment: {str(getattr(state, "value", state)): count for state, count in of.replica_states.items()}
                for deployment, of in application.deployments.items()
            },
        }
        for name, application in serve.status().applications.items()
    }


def update(document: dict[str, Any]) -> None:
    """Hand Serve the tiers anew, as `forebay deploy run` does; Serve replaces what has changed in place."""
    import ray

    ray.get(ray.remote(num_cpus=0, max_calls=1)(deploy_tiers).remote(list(document["tiers"]), document))


if __name__ == "__main__":
    main()
