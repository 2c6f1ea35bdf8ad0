"""Lineages say what a version was made of; they may come from another repository."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from models.errors import NotFound
from models.manifest import File, Manifest, ModelReference
from models.repository.gate import Limits
from models.repository.lineage import ancestors, descends
from models.repository.published import baseline_of
from models.repository.repository import Repository
from tests.versions import FACTS, publish, write_weights


def version(reference: str, content: str, parent: str | None = None, digest: str | None = None) -> Manifest:
    lineage = replace(FACTS.lineage, parent=parent, parent_digest=digest)
    files = (File("model.safetensors", 1, content * 64),)
    return Manifest.of(replace(FACTS, lineage=lineage), ModelReference.parse(reference), "", files)


def finder(known: Mapping[str, Manifest]) -> Callable[[str], Manifest]:
    """Finds the known versions, ten times at most."""
    looks = count(1)

    def find(reference: str) -> Manifest:
        assert next(looks) <= 10, "the search has no end"
        if reference not in known:
            raise NotFound(reference)
        return known[reference]

    return find


def test_the_line_of_a_version_is_its_parents_as_far_as_they_are_there() -> None:
    first = version("demo:1", "a", "gone:1", "f" * 64)
    second = version("demo:2", "b", "demo:1", first.digest)
    third = version("demo:3", "c", "demo:2", second.digest)
    known = {each.reference: each for each in (first, second, third)}
    assert list(ancestors(third, finder(known))) == [second, first]
    assert descends(third, first, finder(known)) and not descends(first, third, finder(known))
    del known["demo:1"]
    assert descends(third, first, finder(known)), "its child says so"


def test_another_version_under_the_parent_s_name_is_no_parent() -> None:
    """An export of demo:2, made of demo:1, is demo:1 where it is imported first."""
    elsewhere, other = version("demo:1", "b", "demo:1", "f" * 64), version("demo:2", "c")
    known = {each.reference: each for each in (elsewhere, other)}
    assert list(ancestors(elsewhere, finder(known))) == []
    assert not descends(elsewhere, other, finder(known))


def test_a_circle_of_foreign_lineages_ends() -> None:
    """A digest covers no lineage, so each of two manifests can name the other's."""
    one, two, other = version("demo:1", "a"), version("demo:2", "b"), version("demo:3", "c")
    own = version("demo:4", "d")
    known = {
        "demo:1": version("demo:1", "a", "demo:2", two.digest),
        "demo:2": version("demo:2", "b", "demo:1", one.digest),
        "demo:4": version("demo:4", "d", "demo:4", own.digest),
    }
    assert [each.reference for each in ancestors(known["demo:1"], finder(known))] == ["demo:2"]
    for reference in known:
        assert not descends(known[reference], other, finder(known))


def test_an_import_from_elsewhere_holds_up_no_promotion_and_is_compared_with_no_stranger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository, looks = Repository(tmp_path), count(1)
    resolve = repository.resolve

    def few(reference: str) -> Manifest:
        assert next(looks) < 50, "the search has no end"
        return resolve(reference)

    monkeypatch.setattr(repository, "resolve", few)
    with repository.stage() as staged:
        write_weights(staged, "8-bit")
        lineage = replace(FACTS.lineage, parent="demo:1", parent_digest="f" * 64)
        repository.publish(staged, replace(FACTS, precision="int8", lineage=lineage), "demo")
    repository.promote("demo", "production", "1", "a test", limits=Limits())
    publish(repository, "two")
    assert repository.promote("demo", "production", "2", "a test", limits=Limits()).version == "2"
    with repository.stage() as staged:
        write_weights(staged, "another 8-bit")
        third = repository.publish(staged, replace(FACTS, precision="int8", lineage=lineage), "demo")
    found = baseline_of(repository, third)
    assert found is not None and found.reference == "demo:2", "production, and not demo:1, which is no parent"
