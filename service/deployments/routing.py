"""Routing says which version a model reference means now. It knows references and aliases, not engines.

A request resolves its reference once and stays on that version to its end.
"""

from __future__ import annotations

from models.errors import Conflict as RepositoryConflict
from models.errors import Corrupt, InvalidReference, InvalidSource, RepositoryError
from models.errors import NotFound as RepositoryNotFound
from models.errors import Stale as RepositoryStale
from models.manifest import DEFAULT_ALIAS, Manifest, ModelReference
from models.repository import Repository
from service.errors import Conflict, DosirakError, InvalidRequest, NotFound, Stale, Unavailable


def as_service_error(error: RepositoryError) -> DosirakError:
    """The repository's failure in the service's words; the sentence is kept."""
    match error:
        case RepositoryNotFound():
            return NotFound(str(error), param="model")
        case InvalidReference() | InvalidSource():
            return InvalidRequest(str(error), param="model")
        case RepositoryStale():
            return Stale(str(error))
        case RepositoryConflict():
            return Conflict(str(error))
        case Corrupt():
            return Unavailable(str(error))
        case _:
            return Unavailable(f"The model repository cannot answer: {error}")


class Router:
    """Resolves references against one repository; `default_model` stands in where a request names none."""

    def __init__(self, repository: Repository, default_model: str) -> None:
        self._repository = repository
        self._default_model = default_model

    def moving(self, reference: str | None) -> str | None:
        """`reference` (None: the default) where it may mean another version tomorrow; None for an exact version. Raises
        InvalidRequest for a malformed one."""
        return None if self._parsed(reference).version is not None else reference or self._default_model

    def alias_of(self, reference: str | None) -> tuple[str, str] | None:
        """(name, alias) that a reference goes by, a bare name by its default alias; None for an exact version."""
        asked = self._parsed(reference)
        return None if asked.version is not None else (asked.name, asked.alias or DEFAULT_ALIAS)

    def _parsed(self, reference: str | None) -> ModelReference:
        try:
            return ModelReference.parse(reference or self._default_model)
        except RepositoryError as error:
            raise as_service_error(error) from None

    def resolve(self, reference: str | None) -> Manifest:
        """Raises InvalidRequest for a malformed reference, NotFound where nothing answers to it."""
        try:
            return self._repository.resolve(reference or self._default_model)
        except RepositoryError as error:
            raise as_service_error(error) from None
