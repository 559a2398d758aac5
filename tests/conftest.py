"""Settings of every test run, and what is too dear to make twice."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from core.embedder import Encoder, SentenceTransformerEncoder
from core.encoders import encoder_for

# Examples are the same in every run, and the machine's speed is nobody's fault.
settings.register_profile(
    "forebay", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("forebay")


@pytest.fixture(scope="session")
def minilm() -> Encoder:
    """The real embedding model, as it is shipped."""
    return encoder_for()


@pytest.fixture(scope="session")
def torch_minilm() -> SentenceTransformerEncoder:
    """The same model on torch: seconds to load."""
    return SentenceTransformerEncoder()


HERE = Path(__file__).parent
# Modules that take seconds by what they test: whole rounds of examples, real stores, training, waits for probes.
SLOW = (
    "browser/test_form",
    "browser/test_live",
    "browser/test_what_if",
    "contract/cache/test_stores",
    "contract/limits/test_ledgers",
    "integration/test_console",
    "helm/test_every_value",
    "helm/test_manifests",
    "helm/test_live",
    "helm/test_rules",
    "integration/test_bench_load",
    "integration/test_fair_queue",
    "integration/test_fault_run",
    "integration/test_limits",
    "integration/test_load_cases",
    "integration/test_names",
    "integration/test_openapi_examples",
    "integration/test_reload",
    "integration/test_router_label",
    "integration/test_routing_cases",
    "integration/test_shared_cache",
    "integration/test_shared_cache_faults",
    "integration/test_shared_conversations",
    "integration/test_singleflight_edges",
    "integration/test_streaming_bytes",
    "integration/test_tenant_walls",
    "integration/test_top",
    "integration/test_up_refuses",
    "integration/test_upstream_faults",
    "integration/test_workers",
    "unit/cache/test_growth",
    "unit/capacity/test_calibrate",
    "unit/capacity/test_fleet",
    "unit/deploy/test_instance",
    "unit/deploy/test_vllm_agrees",
    "unit/router/test_conversations",
    "unit/router/test_speed_changes_nothing",
    "unit/router/test_train",
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what `make test-fast` leaves out, and leave out what only `make soak` runs."""
    if "soak" not in config.option.markexpr:
        left_out = [item for item in items if item.get_closest_marker("soak")]
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)
    slow = {HERE / f"{module}.py" for module in SLOW}
    for item in items:
        if item.path in slow:
            item.add_marker(pytest.mark.slow)
