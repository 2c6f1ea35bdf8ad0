"""The worker is the process of one job, `python -m service.evaluation.jobs.worker`. It reads the job from its standard
input, and does what each kind of job is: it calls `models` and `service.evaluation`.

    stdin    {"kind", "arguments", "awaited"?: true where a person waits for it and no server runs beside it}
    stdout   a line {"progress", "doing"} now and then, at last {"result"} or {"error"}

It dies with the process that started it, and has a lower priority than serving unless it is awaited: the kernel does
both.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import msgspec

from models.errors import RepositoryError, sentence_of
from models.manifest import Manifest, precision_of
from models.progress import Progress, part
from models.repository.report import Effort
from models.repository.repository import Repository
from service.errors import DosirakError, NoEngine
from service.evaluation.texts import calibration
from service.evaluation.trial import try_chats
from service.host import BACKGROUND_NICENESS, die_with_parent, has_torch, print_wordless
from service.settings import Settings
from service.storage.records import open_repository

LONGEST_REASON = 4_000
IMPORTED = 0.7
"""The import's share of the progress, where an evaluation follows."""
_SEND_SECONDS: Final = 0.2


def run(kind: str, arguments: dict[str, Any], settings: Settings, progress: Progress) -> dict[str, Any]:
    """Returns the job's result. Raises RepositoryError or DosirakError, whose text is for the client. Imports torch."""
    return _KINDS[kind](open_repository(settings), settings, progress, **arguments)


def _import(
    repository: Repository,
    settings: Settings,
    progress: Progress,
    source: str,
    name: str,
    author: str,
    version: str | None,
    precision: str | None,
    revision: str | None,
    evaluate: str,
    adapter_of: str | None = None,
) -> dict[str, Any]:
    from models.imports.importing import import_source

    manifest = import_source(
        repository,
        source,
        name,
        version,
        precision,
        revision,
        author,
        _before(evaluate, progress),
        calibration,
        adapter_of,
        try_chats,
    )
    return _named(manifest) | _evaluated(repository, settings, progress, manifest, evaluate)


def _quantize(
    repository: Repository,
    settings: Settings,
    progress: Progress,
    model: str,
    author: str,
    precision: str,
    evaluate: str,
    group_size: int | None = None,
) -> dict[str, Any]:
    from models.weights.quantize import quantize

    parent, reached = repository.resolve(model), _before(evaluate, progress)
    manifest = quantize(repository, parent, precision, None, author, reached, calibration, group_size)
    return _named(manifest) | _evaluated(repository, settings, progress, manifest, evaluate)


def _evaluate(
    repository: Repository, settings: Settings, progress: Progress, model: str, effort: str, text_file: str | None
) -> dict[str, Any]:
    from service.evaluation.evaluate import evaluate

    manifest = repository.resolve(model)
    texts = None if text_file is None else Path(text_file)
    evaluate(settings, repository, manifest, msgspec.convert(effort, Effort), texts, progress)
    return _named(manifest)


def _evaluated(
    repository: Repository, settings: Settings, progress: Progress, manifest: Manifest, effort: str
) -> dict[str, Any]:
    """Evaluates a published version. Returns an empty dictionary, or the reason where the evaluation failed: the
    version stays published."""
    if effort == "none":
        return {}

    try:
        _evaluate(repository, settings, part(progress, IMPORTED, 1.0), manifest.reference, effort, None)
    except Exception as error:  # a failed report must not undo what was published
        return {"not_evaluated": shortened(f"{type(error).__name__}: {error}")}
    return {}


def _needs(
    repository: Repository,
    settings: Settings,
    progress: Progress,
    config: str,
    weight_bytes: int,
    largest_file: int,
    precision: str,
) -> dict[str, Any]:
    """What a checkpoint that is not here yet will need on this machine, by its config.json or by the GGUF file that is
    its whole; `gpu_free` only where a GPU would serve it. `precision` is int8 for a GGUF file that was asked for as
    `file` and cannot be computed so; `no_blocks` says why."""
    from models.imports import gguf_file
    from models.imports.sources import is_gguf
    from models.weights.loading import resolve_device
    from models.weights.skeleton import of_config
    from service.deployments.needs import Files, needs_of
    from service.engine.runner.kv_cache import free_bytes

    device = resolve_device(settings.first_device)
    free, no_blocks = free_bytes(device), ""
    if is_gguf(config):
        sizes, no_blocks = gguf_file.skeleton_of(Path(config))
        precision = "int8" if no_blocks and precision == "file" else precision
        weight_bytes = sizes.weight_bytes("bf16")
    else:
        sizes = of_config(Path(config))
    needs = needs_of(sizes, Files(weight_bytes, largest_file), precision_of(precision), settings, free)
    gpu_free = free if device.type == "cuda" else None
    return asdict(needs) | {"gpu_free": gpu_free, "precision": precision, "no_blocks": no_blocks}


def _before(evaluate: str, progress: Progress) -> Progress:
    """Returns the progress of the work before an evaluation, where there is one."""
    return part(progress, 0.0, 1.0 if evaluate == "none" else IMPORTED)


def shortened(reason: str) -> str:
    """Returns a reason that fits a line of the worker: libraries quote whole files in theirs."""
    return reason if len(reason) <= LONGEST_REASON else f"{reason[:LONGEST_REASON]} …"


def _named(manifest: Manifest) -> dict[str, Any]:
    return {"model": manifest.name, "version": manifest.version, "digest": manifest.short_digest}


_KINDS: dict[str, Callable[..., dict[str, Any]]] = {
    "import": _import,
    "quantize": _quantize,
    "evaluate": _evaluate,
    "needs": _needs,
}


class ProgressWriter:
    """Writes lines for the server. It takes standard output for itself; all other output goes to standard error."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)
        self._sent_at = 0.0

    def progress(self, fraction: float, doing: str) -> None:
        now = time.monotonic()
        if now - self._sent_at >= _SEND_SECONDS:
            self._sent_at = now
            self.send({"progress": fraction, "doing": doing})

    def send(self, line: dict[str, Any]) -> None:
        self.write(msgspec.json.encode(line))

    def write(self, line: bytes) -> None:
        self._out.write(line + b"\n")
        self._out.flush()


def main() -> int:
    die_with_parent()
    writer = ProgressWriter()
    try:
        job = msgspec.json.decode(sys.stdin.buffer.read())
        os.nice(0 if job.get("awaited") else BACKGROUND_NICENESS)
        writer.send({"result": run(job["kind"], job["arguments"], Settings(), writer.progress)})
    except (RepositoryError, DosirakError) as error:
        writer.send({"error": shortened(str(error))})
    except Exception as error:  # the last chance to report the error to the server; the traceback is for its log
        print_wordless(error)
        writer.send({"error": shortened(_unexpected(error))})
    return 0


def _unexpected(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and not has_torch():
        return NoEngine().message
    return sentence_of(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    sys.exit(main())
