"""A logits processor of vLLM that lets answers end, for the demonstration model.

So small a model falls into loops on questions that are too hard for it, and would go on to the end of its context. Such
an answer is useless, keeps an engine busy for minutes, and is never cached, because it is cut off. So an answer ends at
the first end of a sentence after `additional_config.brevity` tokens, and at twice as many in any case. Requests that
say how they end (`ignore_eos`, `min_tokens`, structured output) are left alone.

Imported in the engine's process only.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

from deploy.sentences import is_over, sentence_ends


class Brevity(AdapterLogitsProcessor):  # type: ignore[misc]  # vLLM's types are not looked at
    """Ends answers near a length in tokens."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        super().__init__(vllm_config, device, is_pin_memory)
        model = vllm_config.model_config
        self._limit = int(vllm_config.additional_config["brevity"])
        self._end_token = int(model.hf_config.eos_token_id)
        self._ends, self._digits = sentence_ends(Path(model.model) / "tokenizer.json")

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: Any) -> Any:
        if params.ignore_eos or params.min_tokens or params.structured_outputs is not None:
            return None
        return self._end

    def _end(self, output: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        if not is_over(output, self._limit, self._ends, self._digits):
            return logits
        ending = torch.full_like(logits, float("-inf"))
        ending[self._end_token] = 0
        return ending
