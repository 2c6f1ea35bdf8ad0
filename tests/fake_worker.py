"""`python -m tests.fake_worker FD`: an engine process around the fake model. DOSIRAK_FAKE holds JSON: see Fake."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from service.engine.process.core import ModelRunner
from service.engine.process.worker import main
from service.engine.protocol.config import EngineConfig
from service.engine.protocol.messages import EngineInfo
from service.engine.sequences.batch import Batch, SampledToken
from tests.fakes import FakeRunner, fake_info


@dataclass(frozen=True)
class Fake:
    """How this engine behaves."""

    step_seconds: float = 0.0
    num_blocks: int = 256
    fail_load: str = ""
    fail_load_while: str = ""
    """A path: the load fails as long as there is a file."""
    load_seconds: float = 0.0
    die_on_token: int | None = None
    """A prompt that begins with it ends the process, as a crash in native code would."""
    raise_on_token: int | None = None
    hang_on_token: int | None = None
    hung_file: str = ""
    """A path: a file is made there as a hang begins."""
    freeze_on_token: int | None = None
    """As `hang_on_token`, in native code that keeps the interpreter's lock."""
    read_adapters_after: str = ""
    """A path: adapters are read as soon as there is no such file."""
    fail_adapters_while: str = ""
    """A path: adapters cannot be read as long as there is a file."""


class SlowRunner(FakeRunner):
    def __init__(self, fake: Fake, block_size: int) -> None:
        super().__init__(block_size)
        self._fake = fake

    def run(self, batch: Batch) -> list[SampledToken | None]:
        time.sleep(self._fake.step_seconds)
        first = {item.sequence.token_ids[0] for item in batch.scheduled}
        if self._fake.die_on_token in first:
            os._exit(77)
        if self._fake.raise_on_token in first:
            raise RuntimeError("this token is poison")
        if self._fake.hang_on_token in first:
            if self._fake.hung_file:
                Path(self._fake.hung_file).touch()
            time.sleep(3600)
        if self._fake.freeze_on_token in first:
            ctypes.PyDLL(None).sleep(3600)
        return super().run(batch)

    def read_adapter(self, name: str, directory: str) -> Callable[[], None]:
        while self._fake.read_adapters_after and Path(self._fake.read_adapters_after).exists():
            time.sleep(0.005)
        if self._fake.fail_adapters_while and Path(self._fake.fail_adapters_while).exists():
            raise OSError("Input/output error")
        return super().read_adapter(name, directory)


def build(config: EngineConfig, progress: Callable[[str, float], None]) -> tuple[ModelRunner, EngineInfo]:
    fake = Fake(**json.loads(os.environ.get("DOSIRAK_FAKE", "{}")))
    progress("weights", 0.5)
    time.sleep(fake.load_seconds)
    if fake.fail_load:
        raise ValueError(fake.fail_load)
    if fake.fail_load_while and Path(fake.fail_load_while).exists():
        raise MemoryError("not one KV block fits")
    progress("weights", 1.0)
    runner = SlowRunner(fake, config.block_size)
    for name, directory in config.adapters:
        runner.load_adapter(name, directory)
    return runner, fake_info(fake.num_blocks, config.block_size)


if __name__ == "__main__":
    os._exit(main(lambda: build, sys.argv))
