"""An exported version comes back byte for byte, with its report. Its manifest is a stranger's claim, which is believed
only as far as the files bear it out: their digests, the facts that an import reads of them, and all that an import
checks of a configuration, a tokenizer and weights. The quantized forms are checked by their load.

The module imports torch and transformers only inside functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from models.checkpoint import config_policy, tokenizer_files
from models.checkpoint.block_types import type_of
from models.checkpoint.safetensors_file import FLOATS, Tensor, read_header
from models.errors import Corrupt, InvalidSource
from models.imports import gguf_blocks
from models.imports.shards import PLAIN_DTYPES, check_weights
from models.imports.sources import Source
from models.manifest import ADAPTER_FILES, ADAPTER_WEIGHTS, File, Manifest, precision_of
from models.progress import Progress, part
from models.repository.archive import REPORT
from models.repository.disk.staging import MANIFEST
from models.repository.report import Report
from models.repository.repository import Repository
from models.weights import adapters
from models.weights.names import COLUMNS_SUFFIX, GROUP_SCALE_SUFFIX, SCALE_SUFFIX

if TYPE_CHECKING:
    from models.weights.skeleton import Skeleton

_CONFIG: Final = "config.json"
_AGAIN: Final = "export the version again"


def restore(
    repository: Repository,
    source: Source,
    name: str,
    version: str | None,
    precision: str | None,
    progress: Progress,
    try_text: Callable[[Path], None],
) -> Manifest:
    """Publishes what was exported as `name`. Raises InvalidSource, also for another `precision` than the version's."""
    exported = _manifest_in(source)
    if precision is not None and precision_of(precision) != exported.precision:
        raise InvalidSource(f"This is an exported {exported.precision} version; import it as that and quantize it then")
    report = _report_in(source, exported)
    base = [file for file in exported.files if file.path not in ADAPTER_FILES]
    adapter = [file for file in exported.files if file.path in ADAPTER_FILES]
    with repository.stage() as staged:
        _copy(source, base, staged, part(progress, 0.0, 0.6))
        model = _check_base(staged, exported, try_text)
        if adapter:  # after its base was checked: the library would load both together
            _copy(source, adapter, staged, part(progress, 0.6, 0.7))
            _check_adapter(staged, exported, model)
        _check_numbers(staged, part(progress, 0.7, 0.9))
        digests = {file.path: file.sha256 for file in exported.files}
        manifest = repository.publish(staged, exported.facts, name, version, digests)
    if report is not None:
        repository.put_report(manifest, report)
    return manifest


def _manifest_in(source: Source) -> Manifest:
    """Returns the manifest, all of whose files are there."""
    with source.open(MANIFEST) as stream:
        content = stream.read(config_policy.MAX_JSON_BYTES + 1)
    config_policy.parse_json(content, MANIFEST)  # it may be too large, or nested too deep for other readers
    try:
        exported = Manifest.from_json(content)
    except Corrupt as error:
        raise InvalidSource(f"{error}: {_AGAIN}") from None
    listed = {file.path for file in exported.files}
    if _CONFIG not in listed:
        raise InvalidSource(f"{MANIFEST} lists no {_CONFIG}: {_AGAIN}")
    if missing := listed.difference(source.files()):
        raise InvalidSource(f"{min(missing)} is missing, which {MANIFEST} lists: give the whole export")
    source.refuse_code()
    return exported


def _report_in(source: Source, exported: Manifest) -> Report | None:
    if REPORT not in source.files():
        return None
    with source.open(REPORT) as stream:
        content = stream.read(config_policy.MAX_JSON_BYTES)
    try:
        return Report.from_json(content, exported)
    except Corrupt as error:
        raise InvalidSource(f"{error} where it was exported, or take {REPORT} out of the export") from None


def _copy(source: Source, files: Sequence[File], staged: Path, progress: Progress) -> None:
    for number, file in enumerate(files):
        progress(number / len(files), f"copying {file.path}")
        target = staged / file.path
        if source.copy(file.path, target) != file.sha256 or target.stat().st_size != file.size:
            raise InvalidSource(f"{file.path} is not what was exported")


def _check_base(staged: Path, exported: Manifest, try_text: Callable[[Path], None]) -> Skeleton:
    """Checks the files of a version without its adapter. Returns the model that its configuration describes."""
    from models.weights import fit, skeleton

    accepted = config_policy.accept(config_policy.read_json(staged / _CONFIG))
    if accepted.dropped:
        raise InvalidSource(f"{_CONFIG} has {accepted.dropped[0][:80]!r}, which no version keeps: {_AGAIN}")
    for path in sorted(staged.glob("*.json")):
        if path.name not in (tokenizer_files.TOKENIZER, _CONFIG):
            config_policy.refuse_dangerous(config_policy.read_json(path), path.name)
    try_text(staged)
    tensors = check_weights(staged)
    model = skeleton.build(staged)
    _require_facts(
        exported,
        architecture=accepted.architecture,
        model_type=accepted.model_type,
        context_window=model.context_window,
        vocab_size=model.vocab_size,
        parameters=model.parameters,
        dtype=PLAIN_DTYPES.get(exported.precision, "BF16"),
    )
    _require_precision(exported, tensors)
    if exported.precision in PLAIN_DTYPES:
        fit.check_tensors(staged, model)
    return model


def _require_facts(exported: Manifest, **found: str | int) -> None:
    """Raises InvalidSource, which names the fact, where the manifest says another than was found."""
    for fact, value in found.items():
        told = getattr(exported, fact)
        if told != value:
            raise InvalidSource(f"{MANIFEST} has {str(told)[:80]!r} as {fact}, and the files {str(value)!r}: {_AGAIN}")


def _require_precision(exported: Manifest, tensors: Sequence[Tensor]) -> None:
    """Raises InvalidSource where the tensors are not stored as the manifest's precision and dtype say."""
    if exported.precision not in _precisions_of([tensor.name for tensor in tensors]):
        raise InvalidSource(
            f"{MANIFEST} says {exported.precision}, and the tensors are not stored in that precision: {_AGAIN}"
        )
    for tensor in tensors:
        if tensor.dtype in FLOATS - {exported.dtype} and not tensor.name.endswith(SCALE_SUFFIX):
            raise InvalidSource(f"{tensor.name} is stored as {tensor.dtype}, and not as {exported.dtype}: {_AGAIN}")


def _precisions_of(names: Sequence[str]) -> frozenset[str]:
    """Returns the precisions that store tensors of such names. `llm-int8` keeps no columns where it found none, and
    `int8` and `int8-weight` are stored alike."""

    def has(suffix: str) -> bool:
        return any(name.endswith(suffix) for name in names)

    if any(type_of(name) for name in names):
        return frozenset({"file"})
    if has(GROUP_SCALE_SUFFIX):
        return frozenset({"int4"})
    if has(COLUMNS_SUFFIX):
        return frozenset({"llm-int8"})
    return frozenset({"int8", "int8-weight", "llm-int8"} if has(SCALE_SUFFIX) else PLAIN_DTYPES)


def _check_adapter(staged: Path, exported: Manifest, base: Skeleton) -> None:
    adapters.check_kept(staged, base)
    for tensor in read_header(staged / ADAPTER_WEIGHTS):
        if tensor.dtype != exported.dtype:
            raise InvalidSource(f"{tensor.name} is stored as {tensor.dtype}, and not as {exported.dtype}: {_AGAIN}")


def _check_numbers(staged: Path, progress: Progress) -> None:
    """Raises InvalidSource, which names the tensor, for a number that is NaN or infinite; also in blocks."""
    from models.weights.fit import check_finite

    check_finite(staged, progress)
    for path in sorted(staged.glob("*.safetensors")):
        for tensor in read_header(path):
            if blocks := type_of(tensor.name):
                gguf_blocks.require_numbers(path, tensor, blocks[1])
