"""A GGUF model in parts is one model: on this machine, and in a repository of a hub, which may have several."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from models.errors import InvalidSource
from models.imports.hub.checkpoint import begin
from models.imports.hub.gguf_choice import choose
from models.imports.hub.source import HubSource
from models.imports.importing import import_source
from models.repository.repository import Repository
from tests import gguf_files
from tests.checkpoints import save_llama
from tests.fake_hub import FakeHub, reached

FIRST = "model-00001-of-00003.gguf"


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in three parts, and in one file."""
    directory = tmp_path_factory.mktemp("parts")
    source = save_llama(directory / "source", width=64)
    (directory / "gguf").mkdir()
    gguf_files.of_checkpoint(source, directory / "gguf" / "model.gguf", gguf_files.q8_0, parts=3)
    gguf_files.of_checkpoint(source, directory / "whole.gguf", gguf_files.q8_0)
    return directory


def weights(repository: Repository, source: str, precision: str | None = None) -> dict[str, str]:
    manifest = import_source(repository, source, "model", precision=precision)
    return {file.path: file.sha256 for file in manifest.files if file.path != "README.md"}


@pytest.mark.parametrize("precision", [None, "int8"])
def test_parts_are_the_whole(parts: Path, tmp_path: Path, precision: str | None) -> None:
    repository = Repository(tmp_path)
    whole = weights(repository, str(parts / "whole.gguf"), precision)
    assert weights(repository, str(parts / "gguf" / FIRST), precision) == whole
    digests = repository.versions("model")[-1].lineage
    assert digests.source.startswith("gguf ")


def test_what_is_not_all_parts_is_refused(parts: Path, tmp_path: Path) -> None:
    directory = tmp_path / "copy"
    directory.mkdir()
    contents = {path.name: path.read_bytes() for path in (parts / "gguf").iterdir()}
    second, third = FIRST.replace("00001-", "00002-"), FIRST.replace("00001-", "00003-")
    for changes, source, said in (
        ({}, second, "is not the first part"),
        ({second: None}, FIRST, f"{second} is missing"),
        ({third: contents[second]}, FIRST, f"{third} says that it is part 1"),
        ({"renamed.gguf": contents[FIRST]}, "renamed.gguf", "its name says another"),
        ({third: (parts / "whole.gguf").read_bytes()}, FIRST, f"{third} says that it is part 0"),
    ):
        for name, content in (contents | changes).items():
            (directory / name).unlink(missing_ok=True)
            if content is not None:
                (directory / name).write_bytes(content)
        with pytest.raises(InvalidSource, match=said):
            import_source(Repository(tmp_path / "data"), str(directory / source), "model")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: Path) -> Iterator[FakeHub]:
    repo = tmp_path / "repo"
    (repo / "Q8_0").mkdir(parents=True)
    for path in (parts / "gguf").iterdir():
        (repo / "Q8_0" / path.name.replace("model", "model-Q8_0")).write_bytes(path.read_bytes())
    for name in ("model-Q4_K_M.gguf", "model-Q4_K_S.gguf", "mmproj-F16.gguf"):
        (repo / name).write_bytes((parts / "whole.gguf").read_bytes())
    (repo / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (repo / "README.md").write_text("---\nlicense: mit\n---\n")
    with FakeHub() as hub:
        hub.push("org/Model-GGUF", repo)
        reached(hub, tmp_path / "cache", monkeypatch)
        yield hub


@pytest.mark.parametrize(
    ("wanted", "fetched"),
    [
        ("", ["model-Q4_K_M.gguf"]),
        (":q4_k_s", ["model-Q4_K_S.gguf"]),
        (":Q8_0", [f"Q8_0/model-Q8_0-0000{n}-of-00003.gguf" for n in (1, 2, 3)]),
        (":mmproj-F16.gguf", None),
        (":IQ2_M", None),
        (":Q4_K", None),
    ],
)
def test_one_model_of_a_hub_is_fetched(hub: FakeHub, tmp_path: Path, wanted: str, fetched: list[str] | None) -> None:
    repository = Repository(tmp_path / "data")
    if fetched is None:
        with pytest.raises(InvalidSource, match=r"there are Q8_0/.*00001-of-00003.gguf, model-Q4_K_M"):
            import_source(repository, f"org/Model-GGUF{wanted}", "model")
        return
    manifest = import_source(repository, f"org/Model-GGUF{wanted}", "model", precision="bf16")
    assert [each.path.partition("/main/")[2] or each.path.split("/", 5)[5] for each in hub.weights_sent()] == fetched
    assert manifest.lineage.source.startswith(f"org/Model-GGUF{wanted}@")
    assert f"file {fetched[0]}" in manifest.lineage.recipe
    assert list((tmp_path / "data" / "downloads").iterdir()) == [], "the download goes when it is published"


def test_a_download_goes_on(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = HubSource.parse("org/Model-GGUF:Q8_0")
    assert source is not None
    begun = begin(tmp_path / "data", source)
    assert begun.gguf is not None and begun.gguf.name.startswith("model-Q8_0-00001") and len(begun.sizes) == 3
    assert begin(tmp_path / "data", source).fetch().gguf is not None


@pytest.mark.parametrize(
    ("names", "wanted", "chosen"),
    [
        (["a-Q6_K.gguf"], "", "a-Q6_K.gguf"),
        (["odd.gguf", "imatrix.gguf"], "", "odd.gguf"),
        (["a-IQ1_S.gguf", "b.gguf"], "", "no one usual GGUF file"),
        (["a-Q4_K_M.gguf", "b-Q4_K_M.gguf"], "", "there are a-Q4_K_M.gguf, b-Q4_K_M.gguf"),
        (["a-Q4_K_M.gguf", "b-Q4_K_M.gguf"], "b-Q4_K_M.gguf", "b-Q4_K_M.gguf"),
        (["a-Q8_0-00001-of-00002.gguf"], "Q8_0", "not its part a-Q8_0-00002-of-00002.gguf"),
        (["a.f16.gguf", "a.q8_0.gguf"], "F16", "a.f16.gguf"),
        ([], "Q8_0", "there are none"),
    ],
)
def test_what_is_chosen(names: list[str], wanted: str, chosen: str) -> None:
    try:
        found = choose(HubSource("org/a", file=wanted), names)[0]
    except InvalidSource as error:
        found = str(error)
    assert chosen in found
