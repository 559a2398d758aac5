"""Step times from event logs of profiles."""

import numpy as np
import pytest

from bench.load.fit import Fitted, decode_step
from capacity.step_fit import DecodeStep, PrefillStep, fit_steps
from core.errors import ForebayError
from tests.unit.bench.load.logs import exchange, recorded


def test_a_step_is_the_time_between_tokens_while_all_decode() -> None:
    # The second joins at 1.0; until then steps take 0.1, together 0.2, alone again 0.1.
    first = [0.5, 0.6, 0.7, *np.arange(1.0, 3.0, 0.2).tolist()]
    second = [*np.arange(1.0, 3.0, 0.2).tolist(), 2.9, 3.0, 3.1]
    found = decode_step(recorded([exchange(0, 0.0, first), exchange(1, 0.0, second)]), prompt=100.0)
    assert found.sequences == 2
    assert found.seconds == pytest.approx(0.2, abs=1e-6)
    assert 2 * 100 < found.context_tokens < 2 * 115


def test_requests_that_take_turns_are_no_batch() -> None:
    one, other = exchange(0, 0.0, [0.1, 0.2, 0.3, 0.4]), exchange(1, 0.0, [0.5, 0.6, 0.7, 0.8])
    with pytest.raises(ForebayError, match="do not decode together"):
        decode_step(recorded([one, other]), prompt=10.0)


def fitted(seq_s: float) -> Fitted:
    decodes = [DecodeStep(batch, batch * 100.0, 0.02 + seq_s * batch) for batch in (1, 8, 32)]
    prefills = [PrefillStep(1, tokens, 0.02 + 0.0001 * tokens) for tokens in (16.0, 512.0)]
    return Fitted(fit_steps(decodes, prefills, {"max_num_seqs": 32}), decodes, prefills, [0.0] * 3, [0.0] * 2)


def test_decode_turns_compute_bound_where_sequences_cost_what_weights_do() -> None:
    found = fitted(0.002).document()
    assert found["compute_bound_batch"] == pytest.approx(10.0, rel=1e-6)
    assert found["compute_bound_seen"] is True
    assert found["t_fixed_s"] == pytest.approx(0.02)
    assert found["t_req_s"] == {"decode": pytest.approx(0.002), "prefill_token": pytest.approx(0.0001)}
    assert all(row["fitted_over_measured"] == pytest.approx(1.0) for row in found["decode_steps"])  # type: ignore[attr-defined]


def test_beyond_the_largest_batch_it_is_an_extrapolation() -> None:
    assert fitted(0.0001).document()["compute_bound_seen"] is False


def test_sequences_that_cost_nothing_never_bind() -> None:
    assert fitted(0.0).document()["compute_bound_batch"] is None
