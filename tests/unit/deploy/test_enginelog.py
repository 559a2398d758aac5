"""The reason why an engine did not start is found in pages of logs."""

import pytest

from deploy.enginelog import reason

WRAPPED = """\
(EngineCore pid=7) ERROR 11-30 03:21:39 [core.py:1] Traceback (most recent call last):
(EngineCore pid=7) ERROR 11-30 03:21:39 [core.py:1]   File "kv_cache.py", line 1, in check
(EngineCore pid=7) ERROR 11-30 03:21:39 [core.py:1] ValueError: To serve one request, 1.0 GiB KV cache is needed
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""
VALIDATION = """\
\x1b[36mray::ServeReplica:small\x1b[39m (pid=1) RuntimeError: Traceback (most recent call last):
RuntimeError: Failed to create vLLM engine config: 1 validation error for VllmConfig
  Value error, torch.float32 is not supported for quantization method int8. [type=value_error, input_value=ArgsKwargs]
    For further information visit the documentation
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (WRAPPED, "ValueError: To serve one request, 1.0 GiB KV cache is needed"),
        (VALIDATION, "torch.float32 is not supported for quantization method int8."),
        ("nothing special\nlast words\n", "last words"),
        ("", "no reason given"),
        ("x.y.ActorDiedError: The actor died because of OOM", "ActorDiedError: The actor died because of OOM"),
    ],
)
def test_the_cause_is_named_and_not_what_reports_it(text: str, found: str) -> None:
    assert reason(text) == found


def test_the_first_text_with_an_error_counts() -> None:
    assert reason("all is well", "OSError: no such folder") == "OSError: no such folder"


def test_a_report_is_better_than_nothing() -> None:
    assert "Engine core initialization failed" in reason(WRAPPED.splitlines()[-1])
