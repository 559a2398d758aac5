"""One gateway process with an encoder that needs no model: `python -m bench.shared_cache.gateway '{…}'`.

The argument is the configuration as JSON. Prints its address when it listens; ends on SIGTERM.
"""

import asyncio
import hashlib
import signal
import sys
from collections.abc import Sequence

import numpy as np
import orjson
import uvloop

from core.config import validate
from core.config.records import Embedder
from core.embedder import Embedding, Encoder
from gateway.server import listen, serving

DIM = 384


class WordEncoder:
    """Words hashed into a unit vector: the same words in any order have similarity 1."""

    name = "words"
    revision = "1"
    dim = DIM
    backend = "bench"
    shares = True

    def encode(self, texts: Sequence[str]) -> list[Embedding]:
        """One vector per text."""
        return [Embedding(_vector(text), truncated=False) for text in texts]


def _vector(text: str) -> "np.ndarray[tuple[int], np.dtype[np.float32]]":
    total = np.zeros(DIM, dtype=np.float32)
    for word in text.lower().split():
        digest = np.frombuffer(hashlib.blake2b(word.encode(), digest_size=32).digest(), dtype="<u2")
        # Sixteen signed places of each word: two words share a few at most.
        np.add.at(total, digest % DIM, np.where(digest & 0x8000, np.float32(1), np.float32(-1)))
    return total / np.float32(np.linalg.norm(total))


def _encoder(_: Embedder) -> Encoder:
    return WordEncoder()


async def _serve(document: dict[str, object]) -> None:
    config = validate(document)  # type: ignore[arg-type]  # parsed JSON
    with open("/dev/null", "wb", buffering=0) as nowhere:  # noqa: ASYNC230, PTH123  # request lines are not measured
        async with serving(config, listen(config), write=nowhere.write, make_encoder=_encoder) as (process, serve):
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, process.stop)
            await process.services.embedder.settled()
            print(process.url, flush=True)
            await serve


if __name__ == "__main__":
    uvloop.run(_serve(orjson.loads(sys.argv[1])))
