"""Sixteen threads change one repository at once: no alias breaks, nothing that is in use goes, nothing comes twice.

Hypothesis chooses what every thread does; after each round the rules that must always hold are checked.
"""

from __future__ import annotations

import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from hypothesis import settings, stateful
from hypothesis import strategies as st

from models.errors import Conflict, NotFound
from models.imports.upkeep import collect
from models.repository.disk.leases import Lease
from models.repository.repository import Repository
from tests.effort import drawn
from tests.versions import publish

THREADS = 16
VERSIONS = st.integers(1, 8).map(str)
ALIASES = st.sampled_from(["production", "canary"])
CONTENTS = st.sampled_from(["one", "two", "three"])
CHANGES = st.one_of(
    st.tuples(st.just("publish"), CONTENTS),
    st.tuples(st.just("promote"), ALIASES, VERSIONS),
    st.tuples(st.just("rollback"), ALIASES),
    st.tuples(st.just("remove"), ALIASES),
    st.tuples(st.just("delete"), VERSIONS),
    st.tuples(st.just("lease"), VERSIONS),
    st.tuples(st.just("release"), VERSIONS),
    st.tuples(st.just("collect"), st.integers(0, 3)),
)


class RepositoryMachine(stateful.RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.repository = Repository(self.directory)
        self.leases: dict[str, Lease] = {}
        self.published: list[str] = []
        self.pool = ThreadPoolExecutor(THREADS)
        self.published.append(publish(self.repository, "first").version)

    def change(self, what: tuple[str, ...]) -> None:
        """As a thread would: on its own Repository, and refused with an error of the tree or not at all."""
        repository = Repository(self.directory)
        kind, *arguments = what
        with suppress(NotFound, Conflict):
            match kind:
                case "publish":
                    self.published.append(publish(repository, arguments[0]).version)
                case "promote":
                    repository.promote("demo", arguments[0], arguments[1], "a test")
                case "rollback":
                    repository.rollback("demo", arguments[0], "a test")
                case "remove":
                    repository.remove_alias("demo", arguments[0], "a test")
                case "delete":
                    repository.delete("demo", arguments[0])
                case "lease":
                    lease = repository.lease(repository.get("demo", arguments[0]))
                    if self.leases.setdefault(arguments[0], lease) is not lease:
                        lease.release()
                case "release":
                    with suppress(KeyError):
                        self.leases.pop(arguments[0]).release()
                case "collect":
                    collect(repository, int(arguments[0]))

    @stateful.rule(changes=st.lists(CHANGES, min_size=THREADS, max_size=THREADS))
    def at_once(self, changes: list[tuple[str, ...]]) -> None:
        for future in [self.pool.submit(self.change, each) for each in changes]:
            future.result(timeout=60)

    @stateful.invariant()
    def every_version_is_whole(self) -> None:
        for manifest in self.repository.versions("demo"):
            self.repository.verify(manifest)

    @stateful.invariant()
    def no_alias_dangles(self) -> None:
        for version in self.repository.aliases("demo").values():
            self.repository.get("demo", version)

    @stateful.invariant()
    def what_is_in_use_is_there(self) -> None:
        for version in self.leases:
            self.repository.verify(self.repository.get("demo", version))

    @stateful.invariant()
    def no_number_comes_twice(self) -> None:
        assert len(set(self.published)) == len(self.published)

    @stateful.invariant()
    def nothing_is_left_over(self) -> None:
        assert list(self.repository.layout.temporary.iterdir()) == []

    def teardown(self) -> None:
        self.pool.shutdown()
        for lease in self.leases.values():
            lease.release()
        shutil.rmtree(self.directory)


TestRepositoryMachine = RepositoryMachine.TestCase
TestRepositoryMachine.settings = settings(max_examples=drawn(10, 20), stateful_step_count=8, deadline=None)
