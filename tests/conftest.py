"""Settings of every test run."""

from hypothesis import HealthCheck, settings

# Examples are the same in every run, and the machine's speed is nobody's fault.
settings.register_profile(
    "forebay", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("forebay")
