"""The `forebay up` that runs, for commands that ask it."""

from deploy.instance import Instance
from deploy.places import state_home


def running_url() -> str | None:
    """Where the gateway of the running `forebay up` answers (without `/v1`), or None where none is ready."""
    instance = Instance(state_home())
    state = instance.read() if instance.is_running() else None
    return state.url if state and state.phase == "ready" else None
