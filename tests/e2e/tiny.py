"""A Llama of two layers with random weights, made on the spot, and adapters for it: engines that start in seconds.

Its answers mean nothing, and greedy ones are always the same: weights are spread so widely that the likeliest token is
far ahead of the next, whichever way a prompt was computed.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

LAYERS, HIDDEN, VOCABULARY, CONTEXT = 2, 64, 1024, 2048
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# Words of two syllables; the commonest are tokens.
_SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
WORDS = [first + second for first in _SYLLABLES for second in _SYLLABLES]
# Tools are part of the prompt, as they are of a real model's.
_TEMPLATE = """{%- if tools %}<|im_start|>system
{{ tools | tojson }}<|im_end|>
{% endif %}{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def tiny_model(folder: Path, seed: int = 1) -> Path:
    """Write weights, tokenizer and chat template into `folder`; returns it."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_hidden_layers=LAYERS,
        vocab_size=VOCABULARY,
        max_position_embeddings=CONTEXT,
        initializer_range=0.2,
        bos_token_id=0,
        eos_token_id=2,
        dtype=torch.float32,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    _tokenizer().save_pretrained(folder)
    return folder


def tiny_adapter(folder: Path, rank: int = 8, seed: int = 2) -> Path:
    """Write a LoRA adapter in PEFT's format that changes what the tiny model answers; returns the folder."""
    torch.manual_seed(seed)
    folder.mkdir()
    tensors = {}
    for layer in range(LAYERS):
        for name in ("q_proj", "v_proj"):
            at = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{at}.lora_A.weight"] = torch.randn(rank, HIDDEN)
            tensors[f"{at}.lora_B.weight"] = torch.randn(HIDDEN, rank)
    save_file(tensors, folder / "adapter_model.safetensors")
    described = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": 2 * rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": ["q_proj", "v_proj"],
    }
    (folder / "adapter_config.json").write_text(json.dumps(described), encoding="utf-8")
    return folder


def _tokenizer() -> PreTrainedTokenizerFast:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=list(_SPECIAL), initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    bpe.train_from_iterator([" ".join(WORDS)], trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token=_SPECIAL[0], eos_token=_SPECIAL[2], pad_token=_SPECIAL[0]
    )
    tokenizer.chat_template = _TEMPLATE
    return tokenizer
