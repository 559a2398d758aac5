"""Settings of every test run, and what is too dear to make twice."""

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
