"""A version that makes drafts for another one: chosen by request or setting, refused by name, kept while it is used."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from models.checkpoint.safetensors_file import WEIGHTS
from models.errors import Conflict as RepositoryConflict
from models.manifest import Manifest
from service.deployments.deployments import Deployments
from service.deployments.engine_config import engine_config
from service.deployments.engine_options import EngineOptions
from service.errors import Conflict, InvalidRequest, NotFound, Unavailable
from service.settings import Settings
from tests.tokenizers import byte_level, llama, write
from tests.unit.test_deployments import SlowEngine, World, publish_with_tokenizer
from tests.versions import FACTS, write_weights
from tests.waiting import until


class Drafting(World):
    """Besides demo:1 and demo:2 a small:1 with the same tokens and an other:1 with other ones."""

    def __init__(self, data_dir: Path, **options: object) -> None:
        super().__init__(data_dir, **options)
        self.options: list[EngineOptions] = []
        for name, tokenizer in (("small", byte_level()), ("other", llama())):
            with self.repository.stage() as staged:
                write(staged, tokenizer)
                write_weights(staged, name)
                self.repository.publish(staged, replace(FACTS, context_window=512), name)

    def engine(self, manifest: Manifest, promised_bytes: int, options: EngineOptions) -> SlowEngine:
        self.options.append(options)
        return super().engine(manifest, promised_bytes, options)

    async def loaded(self, reference: str, draft: str | None = None) -> None:
        await self.deployments.begin_loading(reference, draft=draft)
        await until(lambda: self.shown(reference)["state"] in ("ready", "failed"))

    def shown(self, reference: str) -> dict[str, object]:
        return next(each for each in self.deployments.describe() if each["model"] == reference)


@pytest.fixture
def world(tmp_path: Path) -> Drafting:
    return Drafting(tmp_path)


async def test_a_version_is_loaded_with_the_one_that_drafts_for_it(world: Drafting) -> None:
    await world.started()
    await world.loaded("demo:1", "small")
    assert world.shown("demo:1")["draft"] == "small:1" and world.shown("demo:2")["draft"] is None
    assert [options.drafted_by for options in world.options] == [None, "small:1"]
    plain, drafted = (world.deployments._loaded.get(each) for each in ("demo:2", "demo:1"))
    assert plain and drafted and drafted.needed_bytes - plain.needed_bytes == world.repository.get("small", "1").size


async def test_the_engine_reads_the_drafting_versions_files(world: Drafting, tmp_path: Path) -> None:
    draft = world.repository.get("small", "1")
    settings = Settings(data_dir=tmp_path)
    config = engine_config(settings, world.repository, world.repository.get("demo", "2"), 0, EngineOptions(draft=draft))
    assert config.draft is not None and config.draft.model_dir == str(world.repository.path(draft))
    assert (config.draft.precision, config.draft.dtype, config.draft.max_model_len) == ("bf16", "bf16", 512)
    assert config.draft.findings != config.findings


async def test_another_draft_model_than_that_of_the_running_engine_is_a_conflict(world: Drafting) -> None:
    await world.started()
    await world.loaded("demo:1", "small:1")
    await world.deployments.begin_loading("demo:1")
    await world.deployments.begin_loading("demo:1", draft="small:1")
    with pytest.raises(Conflict, match="with draft model small:1: unload it first"):
        await world.deployments.begin_loading("demo:1", draft="other:1")
    with pytest.raises(Conflict, match="with no draft model: unload it first"):
        await world.deployments.begin_loading("demo:2", draft="small:1")


async def test_what_cannot_draft_is_refused(world: Drafting) -> None:
    await world.started()
    with pytest.raises(InvalidRequest, match="demo:1 cannot make drafts for itself"):
        await world.deployments.begin_loading("demo:1", draft="demo:1")
    with pytest.raises(NotFound, match="tiny"):
        await world.deployments.begin_loading("demo:1", draft="tiny:1")
    with pytest.raises(InvalidRequest):
        await world.deployments.begin_loading("demo:1", draft="../x")
    assert [options.drafted_by for options in world.options] == [None]


async def test_other_tokens_are_found_at_the_load(world: Drafting) -> None:
    await world.started()
    await world.loaded("demo:1", "other")
    shown = world.shown("demo:1")
    assert shown["state"] == "failed"
    assert "other:1 has other tokens than demo:1: token" in str(shown["error"])


async def test_a_vocabulary_may_have_more_tokens(world: Drafting) -> None:
    longer = byte_level()
    longer.add_tokens(["<more>"])
    with world.repository.stage() as staged:
        write(staged, longer)
        write_weights(staged, "longer")
        world.repository.publish(staged, FACTS, "longer")
    await world.started()
    await world.loaded("demo:1", "longer")
    assert world.shown("demo:1")["state"] == "ready"


async def test_damaged_files_of_the_draft_model_stop_the_load(world: Drafting) -> None:
    await world.started()
    path = world.repository.path(world.repository.get("small", "1")) / WEIGHTS
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    await world.loaded("demo:1", "small")
    assert world.shown("demo:1")["state"] == "failed"


async def test_a_draft_model_in_use_cannot_be_deleted(world: Drafting) -> None:
    await world.started()
    await world.loaded("demo:1", "small")
    with pytest.raises(RepositoryConflict, match="in use"):
        world.repository.delete("small", "1")
    await world.deployments.unload("demo:1")
    await until(lambda: len(world.deployments.all()) == 1)
    world.repository.delete("small", "1")


async def test_versions_of_the_default_model_have_its_draft_model(tmp_path: Path) -> None:
    """Also after a swap. Other models have none, and a version of the same name that drafts has none itself."""
    world = await Drafting(tmp_path, default_draft="small").started()
    publish_with_tokenizer(world.repository, "three")
    for reference in ("demo:3", "small:1"):
        await world.deployments.ensure_loaded(reference)
    assert [options.drafted_by for options in world.options] == ["small:1", "small:1", None]
    await world.deployments.stop()
    world.deployments = Deployments(world.repository, world.engine, default_model="demo:2", default_draft="demo:1")
    await world.started()
    await world.deployments.ensure_loaded("demo:1")
    assert [options.drafted_by for options in world.options[3:]] == ["demo:1", None]


async def test_a_version_that_serves_needs_no_look_at_its_draft_model(tmp_path: Path) -> None:
    """Else each request would read the repository for it, and fail where its alias has gone."""
    world = await Drafting(tmp_path, default_draft="small@drafting", preload=False).started()
    world.repository.promote("small", "drafting", "1", "a test")
    first = await world.deployments.ensure_loaded("demo:2")
    world.repository.remove_alias("small", "drafting", "a test")
    assert await world.deployments.ensure_loaded("demo:2") is first
    with pytest.raises(NotFound, match="drafting"):
        await world.deployments.ensure_loaded("demo:1")


async def test_a_default_draft_model_that_is_missing_is_why_the_server_is_not_ready(tmp_path: Path) -> None:
    world = await Drafting(tmp_path, default_draft="tiny").started()
    assert not world.deployments.ready
    assert world.deployments.why_not_ready.startswith("no draft model: ") and "tiny" in world.deployments.why_not_ready
    with pytest.raises((NotFound, Unavailable), match="tiny"):
        await world.deployments.ensure_loaded(None)
    with world.repository.stage() as staged:
        write(staged)
        write_weights(staged, "tiny")
        world.repository.publish(staged, FACTS, "tiny")
    await until(lambda: world.deployments.ready)
    await world.deployments.stop()
