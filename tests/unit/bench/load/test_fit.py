"""Step times from event logs of profiles."""

import numpy as np
import pytest

from bench.load.fit import Fitted, decode_step, mixed_steps
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


def test_a_rare_long_step_is_a_part_of_what_steps_take() -> None:
    gaps = [0.1] * 98 + [2.1, 0.1]
    found = decode_step(recorded([exchange(0, 0.0, (1.0 + np.cumsum([0.0, *gaps])).tolist())]), prompt=10.0)
    assert found.seconds == pytest.approx(0.12, rel=1e-5)


def test_a_step_that_prefills_too_is_the_one_whose_tokens_come_with_the_prompts_first() -> None:
    # Steps of 0.1; the one that ends at 2.0 has a prompt in it and takes 0.7.
    steps = [*np.arange(0.5, 1.35, 0.1).tolist(), *np.arange(2.0, 3.0, 0.1).tolist()]
    decoding = [exchange(0, 0.0, steps), exchange(1, 0.0, [at + 0.002 for at in steps])]
    run = recorded([*decoding, exchange(2, 1.25, [2.001])])
    ((length, found),) = mixed_steps(run, [30, 30, 64], batch=2)
    assert (length, found.sequences, found.prompt_tokens) == (64, 2, 64.0)
    assert found.seconds == pytest.approx(0.7, abs=1e-3)
    # The ninth gap: the prompt, its first token and the eight after it.
    assert found.context_tokens == 2 * (30 + 1 + 8)


def test_a_prompt_that_comes_while_not_all_decode_tells_nothing() -> None:
    early, late = exchange(2, 0.2, [0.45]), exchange(3, 1.35, [1.6])
    decoding = [exchange(0, 0.0, [0.3, 0.5, 0.8, 1.1, 1.4]), exchange(1, 0.0, [0.5, 0.8, 1.1, 1.4, 1.6])]
    assert not list(mixed_steps(recorded([*decoding, early, late]), [30, 30, 64, 64], batch=2))


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
