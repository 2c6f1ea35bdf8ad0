"""An import publishes a directory, an archive or a hub id as a version. It refuses files that could run code, unopened.

Accepted are safetensors weights, JSON configurations under `checkpoint.config_policy`, a `tokenizer.json` (made from
slow tokenizer files when it is missing) and a Jinja chat template, which only `service.text` ever renders, bounded.

A local directory that also holds pickled weights or Python files is refused as a whole, so that its publisher looks at
them. From a hub these files are never downloaded, so they are no reason to refuse. Sub-directories and other files are
not read and not copied. The module imports torch and transformers only inside functions.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from models.checkpoint import config_policy, generation_defaults, pooling, tokenizer_files
from models.checkpoint.decoder_start import GENERATION, settle
from models.checkpoint.file_names import CARDS, COPIED
from models.checkpoint.safetensors_file import FLOATS, INDEX, WEIGHTS, Tensor
from models.errors import InvalidSource
from models.imports import packed_weights, text_part, text_trial
from models.imports.adapting import publish_adapter
from models.imports.file_version import publish_file, require_blocks
from models.imports.restoring import restore
from models.imports.shards import PLAIN_DTYPES, check_weights, leave_out_copies, weight_files
from models.imports.sources import Source, finish, open_source
from models.manifest import (
    ADAPTER_CONFIG,
    QUANTIZED,
    Facts,
    Lineage,
    Manifest,
    ModelReference,
    Precision,
    precision_of,
    tools_here,
)
from models.progress import Progress, part, silent
from models.repository import numbering
from models.repository.disk.staging import MANIFEST
from models.repository.repository import Repository

if TYPE_CHECKING:
    from models.weights.calibration import Calibrate
    from models.weights.skeleton import Skeleton


def import_source(
    repository: Repository,
    source: str,
    name: str,
    version: str | None = None,
    precision: str | None = None,
    revision: str | None = None,
    author: str = "",
    progress: Progress = silent,
    calibrate: "Calibrate | None" = None,
    adapter_of: str | None = None,
    try_chats: Callable[[Path], None] | None = None,
) -> Manifest:
    """Check, copy, convert and publish; returns the version of the asked `precision`.

    `source` is a directory, a tar archive, a GGUF file, a hub id `org/name` (at `revision`), or the `name:version` of a
    model that BentoML stored. What was exported from a repository like this one keeps its precision and lineage;
    `precision` None is `file` for a GGUF file of blocks that are computed as they are, and bf16 for everything else. An
    8-bit or 4-bit precision publishes two versions, the bf16 one and the one made from it; `version` then names the
    latter, and the bf16 one stays when making it fails. `llm-int8` needs `calibrate`, which gives
    texts as the version's token ids, and `int4` uses it. `adapter_of` names the version that PEFT's LoRA adapter in
    `source` was trained for: the result is that version with the adapter. `try_chats` raises InvalidSource for a chat
    template that cannot be used. Raises InvalidSource, or Conflict when the version exists or once existed.
    """
    if version is not None:
        numbering.require_free(ModelReference(name, version), repository.taken(name))
    order = _Order(repository, name, version, author, progress, calibrate, try_chats)
    with repository.stage() as unpacked:
        opened = open_source(repository, source, unpacked, revision, progress)
        manifest = order.publish(opened, precision, adapter_of)
        finish(repository, opened)
        return manifest


@dataclass(frozen=True, slots=True)
class _Order:
    """What a caller wants of an import, whatever the source is."""

    repository: Repository
    name: str
    version: str | None
    author: str
    progress: Progress
    calibrate: "Calibrate | None"
    try_chats: Callable[[Path], None] | None

    def publish(self, source: Source, precision: str | None, adapter_of: str | None) -> Manifest:
        if MANIFEST in source.files():
            if adapter_of is not None:
                raise InvalidSource("This is an exported version, whole as it is; import it without adapter_of")
            return restore(self.repository, source, self.name, self.version, precision, self.progress, self.try_text)
        if adapter_of is not None:
            return self._adapt(source, adapter_of, precision)
        usual: Precision = "file" if source.gguf and not source.gguf.no_blocks else "bf16"
        return self._convert(source, precision_of(precision) if precision else usual)

    def _adapt(self, source: Source, adapter_of: str, precision: str | None) -> Manifest:
        parent = self.repository.resolve(adapter_of)
        if ADAPTER_CONFIG not in source.files():
            raise InvalidSource(f"{ADAPTER_CONFIG} is missing: this is no PEFT adapter; import it without adapter_of")
        if precision is not None and precision_of(precision) != parent.precision:
            raise InvalidSource(
                f"An adapter of {parent.reference} is served in its precision, {parent.precision}; leave precision out"
            )
        return publish_adapter(self.repository, source, parent, self.name, self.version, self.author, self.progress)

    def _convert(self, source: Source, precision: Precision) -> Manifest:
        if precision == "file":
            require_blocks(source.gguf)
        if precision not in QUANTIZED:
            with self.repository.stage() as staged:
                imported = _Import(source, staged, precision, self.progress, self.try_text)
                return imported.publish(self.repository, self.name, self.version, self.author)
        from models.weights.quantize import quantize

        known = (each for each in reversed(self.repository.versions(self.name)) if precision == "file")
        parent = next((each for each in known if _is_parent(each, source)), None)
        if parent is None:
            other = self.version and numbering.beside(self.version, self.repository.taken(self.name))
            first = replace(self, version=other, progress=part(self.progress, 0.0, 0.5), calibrate=None)
            parent = first._convert(source, "bf16")
        rest = part(self.progress, 0.5, 1.0)
        if source.gguf and precision == "file":
            return publish_file(self.repository, parent, source.gguf.path, self.version, self.author, rest)
        return quantize(self.repository, parent, precision, self.version, self.author, rest, self.calibrate)

    def try_text(self, staged: Path) -> None:
        """Raises InvalidSource for a tokenizer or a chat template that cannot be used."""
        text_trial.require_usable(staged)
        if self.try_chats is not None:
            self.try_chats(staged)


def _is_parent(known: Manifest, source: Source) -> bool:
    """Whether a version is the bf16 one of the same source."""
    of_source = known.lineage.source == source.description and known.lineage.parent is None
    return of_source and known.precision == "bf16" and not known.has_adapter


class _Import:
    """One import under way: what was copied to `staged`, what is known of it, and what the manifest will say."""

    def __init__(
        self, source: Source, staged: Path, precision: Precision, progress: Progress, try_text: Callable[[Path], None]
    ) -> None:
        self._source = source
        self._try_text = try_text
        self._staged = staged
        self._precision = precision
        self._progress = progress
        self._hashes: dict[str, str] = {}
        self._notes: list[str] = []

    def publish(self, repository: Repository, name: str, version: str | None, author: str) -> Manifest:
        from models.weights import fit, skeleton

        self._copy()
        self._read_pooling()
        self._unpack()
        accepted = self._check_configuration()
        self._hashes |= (changed := leave_out_copies(self._staged, PLAIN_DTYPES[self._precision]))
        self._notes += [f"{name} without tensors that the index has elsewhere" for name in changed]
        tensors = check_weights(self._staged)
        self._progress(0.6, "checking the architecture")
        model = self._untied(skeleton.build(self._staged))
        fit.check_tensors(self._staged, model)
        self._check_tokenizer()
        self._convert(tensors, model)
        facts = self._facts(accepted, model, author)
        return repository.publish(self._staged, facts, name, version, self._hashes)

    def _untied(self, model: "Skeleton") -> "Skeleton":
        """Returns the model whose output head is its own where the files hold one that is not the embedding; then
        `config.json` says so."""
        from models.weights import fit, skeleton

        if not (heads := fit.own_heads(self._staged, model)):
            return model
        path, names = self._staged / "config.json", ", ".join(heads)
        path.write_text(config_policy.as_text(config_policy.read_json(path) | {"tie_word_embeddings": False}))
        untied = skeleton.build(self._staged)
        if untied.tied or model.is_encoder_decoder:  # whose config says more by that key
            raise InvalidSource(
                f"{names} differs from the embedding that config.json ties it to, and this family cannot have both: "
                "save the model without it, or with both equal"
            )
        self._notes.append(f"{names} of its own, which config.json tied to the embedding")
        return untied

    def _copy(self) -> None:
        """Copy what a version needs into the staging directory; weights are hashed on the way."""
        present = self._source.files()
        weights = weight_files(present, self._source)
        needed = [name for name in present if name in COPIED | CARDS | {INDEX}] + weights
        if tokenizer_files.TOKENIZER not in present:
            needed += [name for name in present if name in tokenizer_files.TO_CONVERT]
        for number, name in enumerate(needed):
            self._progress(0.6 * number / len(needed), f"copying {name}")
            digest = self._source.copy(name, self._staged / name)
            if name in weights:
                self._hashes[name] = digest
        if weights != [WEIGHTS] and INDEX not in present:
            (self._staged / weights[0]).rename(self._staged / WEIGHTS)
            self._hashes = {WEIGHTS: self._hashes[weights[0]]}

    def _read_pooling(self) -> None:
        """Writes down how the author makes embeddings, where the source says it."""
        if (modules := self._source.read(pooling.MODULES, pooling.MAX_BYTES)) is not None:
            found = pooling.of_files(modules, self._source.read(pooling.POOLING_CONFIG, pooling.MAX_BYTES))
            (self._staged / pooling.POOLING).write_text(pooling.as_text(found))

    def _unpack(self) -> None:
        """Turns packed weights of 4 or 8 bits into plain ones, before anything else looks at them."""
        config = self._staged / "config.json"
        if config_policy.is_packed(config_policy.read_json(config)):
            note, self._hashes = packed_weights.unpack(self._staged, part(self._progress, 0.5, 0.6))
            self._notes.append(note)

    def _check_configuration(self) -> config_policy.Accepted:
        for path in sorted(self._staged.glob("*.json")):
            if path.name not in (tokenizer_files.TOKENIZER, "config.json"):
                self._check_json(path)
        config = config_policy.read_json(self._staged / "config.json")
        accepted = config_policy.accept(config)
        (self._staged / "config.json").write_text(config_policy.as_text(accepted.config))
        path = self._staged / GENERATION
        defaults = config_policy.read_json(path) if path.exists() else {}
        if accepted.has_encoder:
            defaults = settle(config, defaults)
            path.write_text(config_policy.as_text(defaults))
        if unused := generation_defaults.of_json(defaults).unused:
            self._notes.append(f"{GENERATION} without {', '.join(unused)}")
        if accepted.text_of:
            self._hashes = text_part.keep(self._staged, PLAIN_DTYPES[self._precision])
            self._notes.append(f"the part for text of {accepted.text_of}")
        if accepted.dropped:
            self._notes.append(f"config.json without {', '.join(accepted.dropped)}")
        return accepted

    def _check_json(self, path: Path) -> None:
        """Refuses keys that could bring in code. Code that reads the tokenizer elsewhere is only named in vain where
        tokenizer.json says all."""
        content = config_policy.read_json(path)
        is_vain = path.name == tokenizer_files.CONFIG and (self._staged / tokenizer_files.TOKENIZER).exists()
        if is_vain and content.pop("auto_map", None) is not None:
            path.write_text(config_policy.as_text(content))
            self._notes.append(f"{path.name} without auto_map")
        config_policy.refuse_dangerous(content, path.name)

    def _check_tokenizer(self) -> None:
        if not (self._staged / tokenizer_files.TOKENIZER).exists():
            tokenizer_files.convert_slow(self._staged)
            self._notes.append("tokenizer.json made from the slow tokenizer")
        self._try_text(self._staged)

    def _convert(self, tensors: Iterable[Tensor], model: "Skeleton") -> None:
        """Give all floating tensors the dtype of the asked precision, and let `config.json` say so."""
        from models.weights.conversion import convert_dtype, set_config_dtype
        from models.weights.fit import check_finite

        dtype = PLAIN_DTYPES[self._precision]
        dtypes = {tensor.dtype for tensor in tensors} & FLOATS
        if dtypes <= {dtype}:
            check_finite(self._staged, part(self._progress, 0.6, 0.9))
            set_config_dtype(self._staged / "config.json", dtype)
            return
        self._notes.append(f"{'/'.join(sorted(dtypes))} to {dtype}")
        self._hashes = convert_dtype(
            self._staged, dtype, model.reads, lambda fraction, what: self._progress(0.6 + fraction * 0.3, what)
        )

    def _facts(self, accepted: config_policy.Accepted, model: "Skeleton", author: str) -> Facts:
        return Facts(
            architecture=accepted.architecture,
            model_type=accepted.model_type,
            precision=self._precision,
            dtype=PLAIN_DTYPES[self._precision],
            context_window=model.context_window,
            vocab_size=model.vocab_size,
            parameters=model.parameters,
            license=_license(self._staged),
            lineage=Lineage(
                source=self._source.description,
                recipe="; ".join(["import", *self._source.notes, *self._notes]),
                tools=tools_here(),
                author=author,
            ),
        )


def _license(directory: Path) -> str:
    """The license that the model card's front matter names, else what there is to read."""
    card = directory / "README.md"
    if card.is_file():
        text = card.read_bytes()[:65_536].decode("utf-8", errors="replace")
        front = text.split("---", 2)[1] if text.startswith("---") and text.count("---") > 1 else ""
        found = re.search(r"^license:[ \t]*[\"']?([\w.+-]{1,64})", front, re.MULTILINE)
        if found:
            return found[1]
    return "see LICENSE" if any(directory.glob("LICENSE*")) else "unknown"
