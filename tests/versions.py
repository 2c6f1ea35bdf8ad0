"""Small versions for tests of the repository: files of a few bytes and the facts of a model that does not exist."""

from dataclasses import replace
from pathlib import Path

from models.checkpoint.safetensors_file import WEIGHTS, Tensor, write_file
from models.manifest import Facts, Lineage, Manifest
from models.repository.repository import Repository

FACTS = Facts(
    architecture="LlamaForCausalLM",
    model_type="llama",
    precision="bf16",
    dtype="BF16",
    context_window=2048,
    vocab_size=260,
    parameters=1000,
    license="apache-2.0",
    lineage=Lineage(source="directory", recipe="import", tools=("torch 2.13.0",), author="a test"),
)


def publish(
    repository: Repository,
    content: str,
    name: str = "demo",
    version: str | None = None,
    parent: Manifest | None = None,
) -> Manifest:
    """Publish a version whose weights are the bytes of `content`; with `parent`, as a conversion of that."""
    with repository.stage() as staged:
        (staged / "config.json").write_text("{}")
        write_weights(staged, content)
        return repository.publish(staged, facts(parent), name, version)


def facts(parent: Manifest | None) -> Facts:
    return replace(FACTS, lineage=lineage(parent), precision="int8" if parent else FACTS.precision)


def lineage(parent: Manifest | None) -> Lineage:
    return replace(FACTS.lineage, parent=parent.reference, parent_digest=parent.digest) if parent else FACTS.lineage


def write_weights(directory: Path, content: str, name: str = WEIGHTS) -> None:
    """A weights file of one tensor, the bytes of `content`."""
    data = content.encode()
    write_file(directory / name, [Tensor("text.weight", "U8", (len(data),))], lambda name: memoryview(data), {})
