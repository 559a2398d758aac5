"""Nearest stored questions inside a partition.

Most partitions hold a handful of vectors and are compared in place. A large one gets an inverted file (FAISS IVF) as a
first look, filled and trained on threads. Its codes have one bit per dimension, which is compared in registers (product
quantization, fast scan: André et al., 2017); the vectors themselves decide among the best of them, so little is lost:
of the three nearest questions at 0.8 or above it finds 99.8 % or more, as with eight bits per dimension, in half the
time (`python -m bench.index_recall`). It is searched in place unless a thread is writing to it: a search reads about as
many rows whatever the partition's size, and the way to a thread and back costs as much. Every candidate is scored anew
from the vectors that are held when the search returns, so removal takes effect at once and a stale code serves nothing.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from core.background import Background
from core.embedder import Vector

Result = TypeVar("Result")
logger = logging.getLogger(__name__)

# Rows that are compared in place on the event loop: about 0.3 ms.
IN_PLACE = 2000
# Rows in one list of the inverted file when it is trained, and rows read per search whatever the partition's size.
LIST_ROWS = 256
READ_ROWS = 4000
# Candidates of a search that are scored from their vectors, at least.
SCORED = 32
# Dimensions that share a code of four bits.
TOGETHER = 4
# Rows that wait, compared in place, until they are coded together.
TAIL = 32
# Rows copied from the event loop at one time while a file is filled: about 0.5 ms.
STEP = 1024
# Rows that train a file.
SAMPLE = 20_000


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A stored question, its vector and its cosine similarity, -1 to 1."""

    id: str
    vector: Vector = field(repr=False)
    similarity: float


class InvertedFile:
    """Codes of vectors, grouped around centroids. `keys`: whose code each row is. Blocking; one thread at a time.

    `read`: rows that a search looks at.
    """

    def __init__(self, sample: NDArray[np.float32], size: int, read: int) -> None:
        import faiss  # noqa: PLC0415  # loads a BLAS and an OpenMP runtime, which small caches do not need

        dim, metric = sample.shape[1], faiss.METRIC_INNER_PRODUCT
        self.trained_for, self._read = size, read
        self.keys: list[str] = []
        self._lists = max(1, size // LIST_ROWS)
        # Kept: FAISS does not own what it is given here.
        self._centroids = faiss.IndexFlatIP(dim)
        if dim % TOGETHER:
            kind = faiss.ScalarQuantizer.QT_8bit
            index: Any = faiss.IndexIVFScalarQuantizer(self._centroids, dim, self._lists, kind, metric, False)
        else:
            index = faiss.IndexIVFPQFastScan(self._centroids, dim, self._lists, dim // TOGETHER, 4, metric)
            # Codes of the vectors themselves, not of their distance to the centroid: one table for all lists.
            index.by_residual = False
        self._index, self._probes = index, 0
        self._index.cp.niter = 8
        self._index.cp.min_points_per_centroid = 1
        self._index.train(sample)

    def add(self, keys: Sequence[str], vectors: NDArray[np.float32]) -> None:
        """Codes `vectors`, shape (len(keys), dim)."""
        self._index.add(vectors)
        self.keys.extend(keys)

    def search(self, query: Vector, count: int) -> list[str]:
        """About the `count` nearest keys, some of them perhaps gone from the partition."""
        probes, keys = max(8, self._read * self._lists // max(1, len(self.keys))), self.keys
        if probes != self._probes:
            self._probes = self._index.nprobe = probes
        _, rows = self._index.search(query[None, :], count)
        return [keys[row] for row in rows[0].tolist() if row >= 0]


class Partition:
    """The vectors of one partition: rows of a matrix, a removed row filled by the last one."""

    def __init__(self, dim: int) -> None:
        self.rows: NDArray[np.float32] = np.empty((1, dim), dtype=np.float32)
        self.ids: list[str] = []
        self.slots: dict[str, int] = {}
        self.file: InvertedFile | None = None
        # Ids that are not coded yet, how many may wait, and whether background work is under way.
        self.tail: list[str] = []
        self.patience = 0
        self.busy = False
        # A thread is writing to the file.
        self.coding = False

    def __len__(self) -> int:
        return len(self.ids)

    def add(self, key: str, vector: Vector) -> None:
        """Adds a unit vector under an id that is not there."""
        slot = len(self.ids)
        if slot == len(self.rows):
            grown = np.empty((2 * slot, self.rows.shape[1]), dtype=np.float32)
            grown[:slot] = self.rows
            self.rows = grown
        self.rows[slot] = vector
        self.ids.append(key)
        self.slots[key] = slot
        if self.file is not None or self.busy:
            self.tail.append(key)

    def remove(self, key: str) -> None:
        """Removes an id that is there."""
        slot = self.slots.pop(key)
        last = self.ids.pop()
        if last != key:
            self.ids[slot] = last
            self.slots[last] = slot
            self.rows[slot] = self.rows[len(self.ids)]

    def here(self, keys: Sequence[str]) -> tuple[list[str], NDArray[np.float32]]:
        """Those of `keys` that are in the partition, once each, and a copy of their vectors."""
        slots = self.slots
        held = {key: slots[key] for key in keys if key in slots}
        return list(held), self.rows.take(np.array(list(held.values()), dtype=np.intp), axis=0)

    def scored(self, query: Vector, keys: Sequence[str], count: int) -> list[Neighbour]:
        """The `count` nearest of `keys` that are in the partition, nearest first."""
        held, vectors = self.here(keys)
        found = (vectors @ query).tolist()
        nearest = sorted(range(len(held)), key=found.__getitem__, reverse=True)[:count]
        return [Neighbour(held[row], vectors[row], found[row]) for row in nearest]


def top_rows(rows: NDArray[np.float32], query: Vector, count: int) -> list[int]:
    """Row numbers of the `count` largest inner products, in no order."""
    if count >= len(rows):
        return list(range(len(rows)))
    return [int(row) for row in np.argpartition(rows @ query, -count)[-count:]]


class SimilarityIndex:
    """All partitions. Its methods belong to the event loop; the threads only read and code vectors.

    `read`: rows of a large partition that a search looks at; more find more of the nearest ones.
    """

    def __init__(self, read: int | None = None) -> None:
        self._read = READ_ROWS if read is None else read
        self._partitions: dict[str, Partition] = {}
        self._background = Background()
        self._searcher = ThreadPoolExecutor(1, thread_name_prefix="cache-search", initializer=_single_threaded)
        self._builder = ThreadPoolExecutor(1, thread_name_prefix="cache-build", initializer=_single_threaded)

    async def aclose(self) -> None:
        """Stops the background work and the threads."""
        await self._background.aclose()
        self._searcher.shutdown(wait=True, cancel_futures=True)
        self._builder.shutdown(wait=True, cancel_futures=True)

    async def settled(self) -> None:
        """Waits until no background work is left."""
        await self._background.settled()

    @property
    def partitions(self) -> int:
        """How many partitions hold a vector."""
        return len(self._partitions)

    def add(self, partition: str, key: str, vector: Vector) -> None:
        """Adds a unit vector; background work starts where the partition has become large."""
        part = self._partitions.get(partition)
        if part is None:
            part = self._partitions[partition] = Partition(len(vector))
        part.add(key, vector)
        if len(part) <= IN_PLACE or part.busy or len(part.tail) < part.patience:
            return
        part.busy = True
        self._background.start(self._maintain(part), "cache-index")

    def holds(self, partition: str) -> bool:
        """Whether the partition has a vector."""
        return partition in self._partitions

    def remove(self, partition: str, key: str) -> None:
        """Removes a vector; it is found no more, also by a search that is under way."""
        part = self._partitions[partition]
        part.remove(key)
        if not len(part):
            del self._partitions[partition]

    async def nearest(self, partition: str, query: Vector, count: int) -> list[Neighbour]:
        """The `count` nearest ids in the partition, nearest first. Cancelling it abandons the search."""
        found, part = self.at_once(partition, query, count), self._partitions.get(partition)
        if found is not None or part is None:
            return found or []
        if part.file is None:
            rows = await _on(self._searcher, partial(top_rows, part.rows[: len(part)], query, count))
            keys = [part.ids[row] for row in rows if row < len(part)]
        else:
            keys = await _on(self._searcher, partial(part.file.search, query, _wanted(count)))
            keys += part.tail[-IN_PLACE:]
        return part.scored(query, keys, count)

    def at_once(self, partition: str, query: Vector, count: int) -> list[Neighbour] | None:
        """As `nearest`; None where that takes a thread."""
        part = self._partitions.get(partition)
        if part is None:
            return []
        if len(part) <= IN_PLACE:
            rows = top_rows(part.rows[: len(part)], query, count)
            return part.scored(query, [part.ids[row] for row in rows], count)
        if part.file is None or part.coding:
            return None
        return part.scored(query, part.file.search(query, _wanted(count)) + part.tail[-IN_PLACE:], count)

    async def _maintain(self, part: Partition) -> None:
        """Codes what waits in the tail; trains a new file where size or removals have outgrown the old one."""
        try:
            while len(part) > IN_PLACE and (part.file is None or len(part.tail) >= TAIL):
                file = part.file
                if file is None or len(part) > 2 * file.trained_for or len(file.keys) > 2 * len(part):
                    await self._rebuild(part)
                else:
                    await self._code(part, file, part.tail[:], self._searcher)
            part.patience = TAIL
        except Exception:  # a boundary: without a file the partition is still searched row by row
            part.patience = len(part.tail) + STEP
            logger.exception("the similarity index of a partition could not be maintained")
        finally:
            part.busy = False

    async def _rebuild(self, part: Partition) -> None:
        ids, waiting = part.ids[:], len(part.tail)
        span = STEP * max(1, len(ids) // SAMPLE)
        pieces = []
        for at in range(0, len(ids), span):
            pieces.append(part.here(ids[at : at + span : span // STEP])[1])
            await asyncio.sleep(0)
        file = await _on(self._builder, partial(InvertedFile, np.concatenate(pieces), len(ids), self._read))
        for at in range(0, len(ids), STEP):
            held, vectors = part.here(ids[at : at + STEP])
            await _on(self._builder, partial(file.add, held, vectors))
        _single_threaded()
        part.tail = part.tail[waiting:]
        part.file = file

    async def _code(self, part: Partition, file: InvertedFile, keys: list[str], thread: Executor) -> None:
        part.coding = True
        try:
            for at in range(0, len(keys), STEP):
                held, vectors = part.here(keys[at : at + STEP])
                await _on(thread, partial(file.add, held, vectors))
        finally:
            part.coding = False
        part.tail = part.tail[len(keys) :]


def _wanted(count: int) -> int:
    """Candidates of a first look for so many of the nearest."""
    return max(SCORED, 4 * count)


async def _on(thread: Executor, work: Callable[[], Result]) -> Result:
    return await asyncio.get_running_loop().run_in_executor(thread, work)


def _single_threaded() -> None:
    # One query is too little work to share; OpenMP's own threads would take the cores of the event loop.
    import faiss  # noqa: PLC0415  # see InvertedFile

    faiss.omp_set_num_threads(1)
