"""A manifest holds the frozen facts of one model version, their digest and its name. It knows no disk or weights."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from importlib.metadata import version as installed
from typing import Any, Literal, Self, cast, get_args

from models.errors import Corrupt, InvalidReference, InvalidSource

Precision = Literal["fp32", "bf16", "int8", "int8-weight", "llm-int8", "int4", "file"]
PRECISIONS: tuple[str, ...] = get_args(Precision)
DEFAULT_ALIAS = "production"
"""The alias that a bare name means, if the model has it."""
QUANTIZED: frozenset[str] = frozenset({"int8", "int8-weight", "llm-int8", "int4", "file"})
"""Precisions with 8-bit weights in their files: with 8-bit activations; with unchanged activations; with 8-bit
activations except outlier columns, which stay in 16 bits. `int4` has 4-bit weights in most layers, and 8-bit
activations. `file` has the blocks of a GGUF file as they are, and activations in 8 bits by groups of 32."""
HADAMARD: frozenset[str] = frozenset({"int8", "int8-weight", "int4"})
"""Precisions whose weights pass a Hadamard transform (`models.weights.hadamard`) in versions of today's recipe."""

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
ADAPTER_FILES = frozenset({ADAPTER_CONFIG, ADAPTER_WEIGHTS})
"""The files of a version with an adapter besides its base's files (`models.weights.adapters`)."""

# A subset of `[a-z0-9][a-z0-9._-]{0,63}`: BentoML's own tags are at most 63 characters and end with a letter or digit,
# and one directory that is not a valid tag makes `bentoml models list` fail for the whole store.
_PART = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?")
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def precision_of(text: str) -> Precision:
    """Returns `text` as a precision. Raises InvalidSource with the list of precisions."""
    if text not in PRECISIONS:
        raise InvalidSource(f"{text[:80]!r} is no precision; choose one of {', '.join(PRECISIONS)}")
    return cast(Precision, text)


def is_file_name(text: str) -> bool:
    """True for a plain file name: ASCII letters, digits, `._-`, no leading dot, no separator."""
    return _FILE_NAME.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class ModelReference:
    """`name`, `name:version` or `name@alias`; at most one of `version` and `alias` is set."""

    name: str
    version: str | None = None
    alias: str | None = None

    def __post_init__(self) -> None:
        for part in (self.name, self.version, self.alias):
            if part is not None and not _PART.fullmatch(part):
                raise InvalidReference(
                    f"{part[:80]!r} is not a valid name, version or alias: use 1 to 63 of a-z 0-9 . _ -, "
                    "beginning and ending with a letter or digit"
                )
        if self.version is not None and self.alias is not None:
            raise InvalidReference("A model reference has a version or an alias, not both")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises InvalidReference for anything but the three forms; nothing is lower-cased or stripped."""
        name, at, alias = text.partition("@")
        name, colon, version = name.partition(":")
        return cls(name, version if colon else None, alias if at else None)

    def __str__(self) -> str:
        if self.version is not None:
            return f"{self.name}:{self.version}"
        return f"{self.name}@{self.alias}" if self.alias is not None else self.name


@dataclass(frozen=True, slots=True)
class File:
    """One file of a version: its plain name, its size in bytes and the sha256 (64 hex) of its content."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True, order=True)
class Layer:
    """Modules that are stored alike: their names, with `*` or a list for numbers in them, and the dtype of their
    weights (`repository.layers`)."""

    pattern: str
    dtype: str


@dataclass(frozen=True, slots=True)
class Lineage:
    """Where a version comes from.

    `source` is what was imported (a hub id with its commit, or `directory`); `parent` is the `name:version` it was made
    from and `parent_digest` that version's full digest; `recipe` says what was done, in words; `tools` lists
    `name version` of the libraries that did it; `author` is the person who asked for it, empty if unknown.
    """

    source: str
    parent: str | None = None
    parent_digest: str | None = None
    recipe: str = ""
    tools: tuple[str, ...] = ()
    author: str = ""


def tools_here() -> tuple[str, ...]:
    """Returns the libraries that make versions, as a lineage lists them."""
    return tuple(f"{package} {installed(package)}" for package in ("torch", "transformers"))


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts that the maker of a version knows before it is published.

    `precision` is how linear weights are stored, `dtype` that of all other tensors as safetensors spells it (`BF16`);
    `context_window` is in tokens; `parameters` counts the weights of the model, tied ones once and scales not.
    """

    architecture: str
    model_type: str
    precision: Precision
    dtype: str
    context_window: int
    vocab_size: int
    parameters: int
    license: str
    lineage: Lineage


@dataclass(frozen=True)
class Manifest:
    """One published version. `files` is sorted by path and holds every file except `manifest.json` and `model.yaml`."""

    name: str
    version: str
    created_at: str
    architecture: str
    model_type: str
    precision: Precision
    dtype: str
    context_window: int
    vocab_size: int
    parameters: int
    license: str
    files: tuple[File, ...]
    lineage: Lineage
    description: str = ""
    """sha256 of `model.yaml`, which is made of the rest; empty in old manifests without a checksum."""
    layers: tuple[Layer, ...] = ()
    """The stored dtype of each module, by the files' own headers; empty in old manifests."""

    @classmethod
    def of(
        cls,
        facts: Facts,
        reference: ModelReference,
        created_at: str,
        files: tuple[File, ...],
        layers: tuple[Layer, ...] = (),
    ) -> Self:
        """The manifest of `facts` published as `reference`, which must have a version."""
        if reference.version is None:
            raise InvalidReference(f"{reference} names no version to publish")
        known = {field.name: getattr(facts, field.name) for field in fields(Facts)}
        return cls(reference.name, reference.version, created_at, files=files, layers=layers, **known)

    @property
    def facts(self) -> Facts:
        return Facts(**{field.name: getattr(self, field.name) for field in fields(Facts)})

    def derived(self, recipe: str, author: str, **changes: Any) -> Facts:
        """Returns the facts of a version that is made of this one by `recipe`, with `changes`."""
        lineage = Lineage(self.lineage.source, self.reference, self.digest, recipe, tools_here(), author)
        return replace(self.facts, **{"lineage": lineage, **changes})

    @property
    def reference(self) -> str:
        return f"{self.name}:{self.version}"

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(file.size for file in self.files)

    @cached_property
    def digest(self) -> str:
        """sha256 (64 hex) over canonical JSON of the facts that determine the answers, without name, version, time and
        lineage."""
        return self._digest_of(self.files)

    @property
    def has_adapter(self) -> bool:
        return any(file.path == ADAPTER_WEIGHTS for file in self.files)

    @property
    def has_hadamard(self) -> bool:
        """Whether its weights have passed a Hadamard transform; those of older recipes have not."""
        return self.precision in HADAMARD and "Hadamard" in self.lineage.recipe

    @property
    def better_recipe(self) -> str:
        """What to do about a conversion whose recipe has become better since; empty where nothing is to be done."""
        if self.precision not in HADAMARD or self.has_hadamard or not self.is_conversion:
            return ""
        return (
            f"{self.reference} is of an older recipe, which loses more: dosirak model quantize {self.lineage.parent} "
            f"--precision {self.precision} makes a better version"
        )

    @property
    def is_conversion(self) -> bool:
        """Whether it holds its parent's weights in another precision. A version with an adapter, beside its base or
        merged into it, has a parent too, but is trained."""
        return self.lineage.parent is not None and self.precision in QUANTIZED and not self.has_adapter

    @cached_property
    def base_digest(self) -> str:
        """The digest of the base version that the adapter was made for; `digest` for a version without an adapter."""
        return self._digest_of(tuple(file for file in self.files if file.path not in ADAPTER_FILES))

    @property
    def adapter_bytes(self) -> int:
        """Bytes of the adapter's files; 0 without one."""
        return sum(file.size for file in self.files if file.path in ADAPTER_FILES)

    def _digest_of(self, files: tuple[File, ...]) -> str:
        facts = {
            "architecture": self.architecture,
            "model_type": self.model_type,
            "precision": self.precision,
            "dtype": self.dtype,
            "context_window": self.context_window,
            "vocab_size": self.vocab_size,
            "parameters": self.parameters,
            "files": [[file.path, file.size, file.sha256] for file in files],
        }
        return _sha256_of(facts)

    @property
    def short_digest(self) -> str:
        return self.digest[:12]

    def to_json(self) -> str:
        """All fields, the digest and a checksum over everything before it, indented, ending with a newline."""
        content = {**asdict(self), "digest": self.digest}
        return json.dumps({**content, "checksum": _sha256_of(content)}, indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """The inverse of `to_json`; a manifest from before there was a checksum, or `layers`, is read without. Raises
        Corrupt naming the key that is unknown, missing, mistyped or untrue."""
        try:
            raw = json.loads(text)
        except ValueError as error:
            raise Corrupt(f"manifest.json is not JSON: {error}") from None
        if not isinstance(raw, dict):
            raise Corrupt("manifest must be an object")
        checksum = raw.pop("checksum", None)
        content = dict(raw)
        raw.setdefault("layers", [])
        if checksum is None:
            raw.setdefault("description", "")
        values = _mapping(raw, cls, "manifest", extra=("digest",))
        digest = values.pop("digest")
        manifest = cls(**_typed(values, cls, _MANIFEST_SPECIAL, "manifest"))  # type: ignore[arg-type]
        if digest != manifest.digest:
            raise Corrupt("manifest.digest does not match the facts in the manifest")
        if checksum is not None and checksum != _sha256_of(content):
            raise Corrupt("manifest.checksum does not match the manifest")
        return manifest


def _sha256_of(content: Mapping[str, object]) -> str:
    """sha256 (64 hex) over canonical JSON."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _mapping(raw: object, cls: type, where: str, extra: tuple[str, ...] = ()) -> dict[str, object]:
    """`raw` as a dictionary with exactly the fields of the dataclass `cls` and `extra`."""
    if not isinstance(raw, dict):
        raise Corrupt(f"{where} must be an object")
    known = {field.name for field in fields(cls)} | set(extra)
    for verdict, keys in (("unknown", raw.keys() - known), ("missing", known - raw.keys())):
        if keys:
            raise Corrupt(f"{where}.{min(keys)} is {verdict}")
    return cast(dict[str, object], dict(raw))


def _typed(
    values: dict[str, object], cls: type, special: dict[str, Callable[[object, str], object]], where: str
) -> dict[str, object]:
    """`values` checked against the field types of `cls`; `special` fields are parsed by their own function."""
    checks = {field.name: special.get(field.name) or _PLAIN[field.type] for field in fields(cls)}
    return {key: checks[key](value, f"{where}.{key}") for key, value in values.items()}


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise Corrupt(f"{where} must be a string")
    return value


def _optional_text(value: object, where: str) -> str | None:
    return None if value is None else _text(value, where)


def _count(value: object, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise Corrupt(f"{where} must be a whole number, not negative")
    return value


def _list(value: object, where: str) -> list[object]:
    if not isinstance(value, list):
        raise Corrupt(f"{where} must be a list")
    return value


def _texts(value: object, where: str) -> tuple[str, ...]:
    return tuple(_text(item, where) for item in _list(value, where))


def _file(raw: object, where: str) -> File:
    file = File(**_typed(_mapping(raw, File, where), File, {}, where))  # type: ignore[arg-type]
    if not is_file_name(file.path) or not _SHA256.fullmatch(file.sha256):
        raise Corrupt(f"{where} has a path that is no plain file name, or a sha256 that is not 64 hex digits")
    return file


def _files(value: object, where: str) -> tuple[File, ...]:
    files = tuple(_file(item, where) for item in _list(value, where))
    if list(files) != sorted({file.path: file for file in files}.values(), key=lambda file: file.path):
        raise Corrupt(f"{where} must be sorted by path, each path once")
    return files


def _layers(value: object, where: str) -> tuple[Layer, ...]:
    return tuple(
        Layer(**_typed(_mapping(item, Layer, where), Layer, {}, where))  # type: ignore[arg-type]
        for item in _list(value, where)
    )


def _lineage(value: object, where: str) -> Lineage:
    return Lineage(**_typed(_mapping(value, Lineage, where), Lineage, {}, where))  # type: ignore[arg-type]


def _precision(value: object, where: str) -> Precision:
    try:
        return precision_of(_text(value, where))
    except InvalidSource as error:
        raise Corrupt(f"{where}: {error}") from None


_PLAIN: dict[object, Callable[[object, str], object]] = {
    str: _text,
    str | None: _optional_text,
    int: _count,
    tuple[str, ...]: _texts,
    Precision: _precision,
}
_MANIFEST_SPECIAL: dict[str, Callable[[object, str], object]] = {
    "files": _files,
    "lineage": _lineage,
    "layers": _layers,
}
