"""The feed makes a run's batches in worker processes, in the order of the run whatever process is first.

A chunk of rows is made from its number, so a run goes on at any chunk. It knows no network.
"""

import os
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from pathlib import Path

from tokenizers import Tokenizer

from recipe.corpus import batches
from recipe.encoding import Row

AHEAD = 3  # chunks that each worker has in hand or ready
_tokenizer: Tokenizer | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """Where a run's rows come from: `seed` and the sizes of the preset.

    staged: whether the first chats of the run are shorter; not so where a run begins with trained weights.
    """

    tokenizer: Path
    seed: int
    chunk: int
    chunks: int
    batch_tokens: int
    staged: bool = True

    def batches(self, number: int) -> list[list[Row]]:
        """The batches of a chunk. The first of a staged run are shorter, so half as large."""
        share = number / self.chunks if self.staged else 1.0
        size = self.batch_tokens // 2 if share < 0.06 else self.batch_tokens
        first = self.seed * 1_000_000_000 + number * self.chunk
        return batches(first, self.chunk, share, _loaded(self.tokenizer), size)


def _loaded(path: Path) -> Tokenizer:
    global _tokenizer
    if _tokenizer is None:
        _tokenizer = Tokenizer.from_file(str(path))
    return _tokenizer


def _end_with_the_run() -> None:
    """In a worker: a run that is killed cannot end its workers, which would wait for ever."""

    def wait() -> None:
        run = parent_process()
        assert run is not None
        run.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def chunks(source: Source, first: int, workers: int) -> Iterator[tuple[int, list[list[Row]]]]:
    """The chunks of a run from number `first` on; with no workers they are made here."""
    if workers == 0:
        for number in range(first, source.chunks):
            yield number, source.batches(number)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_end_with_the_run) as pool:
        waiting: deque[tuple[int, Future[list[list[Row]]]]] = deque()
        ahead = iter(range(first, source.chunks))
        try:
            for number in ahead:
                waiting.append((number, pool.submit(source.batches, number)))
                if len(waiting) >= workers * AHEAD:
                    done, future = waiting.popleft()
                    yield done, future.result()
            while waiting:
                done, future = waiting.popleft()
                yield done, future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
