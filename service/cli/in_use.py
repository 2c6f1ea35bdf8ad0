"""This module says whether another process serves from the data directory, and marks the directory while tuning."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from models.errors import Conflict
from models.manifest import Manifest
from models.repository.disk import leases
from models.repository.repository import Repository
from service.cli.serve.address import address, is_dosirak
from service.cli.serve.checks import marked
from service.evaluation.scenarios.refused import NotMeasured
from service.settings import Settings


@contextmanager
def alone(settings: Settings, repository: Repository, versions: list[Manifest], anyway: bool) -> Iterator[str]:
    """Marks the data directory as used while inside. Yields what uses it already, "" for nothing. Raises NotMeasured
    for that, unless `anyway`."""
    with ExitStack() as held:
        warning = held.enter_context(marked(settings.data_dir))
        user = f"a server uses {settings.data_dir}" if warning else _other_user(settings, repository, versions)
        if user and not anyway:
            raise NotMeasured(
                f"{user}: it would get slower and the figures would be wrong; end it first, or tune beside it with "
                "--anyway"
            )
        yield user


def _other_user(settings: Settings, repository: Repository, versions: list[Manifest]) -> str:
    """Servers that `dosirak serve` did not start make no mark, but they answer, or lease their versions."""
    if is_dosirak(settings):
        return f"a server answers at {address(settings)}"
    for version in versions:
        try:
            with leases.unused(repository.path(version)):
                pass
        except Conflict:
            return f"another process uses {version.reference}"
    return ""
