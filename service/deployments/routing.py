"""Routing says which version a model reference means now. It knows references and aliases, not engines.

A request resolves its reference once and stays on that version to its end.
"""

from __future__ import annotations

from models.errors import Conflict as RepositoryConflict
from models.errors import Corrupt, InvalidReference, InvalidSource, RepositoryError, StoreFull
from models.errors import NotFound as RepositoryNotFound
from models.errors import Stale as RepositoryStale
from models.manifest import Manifest, ModelReference
from models.repository.repository import Repository
from service.errors import Conflict, DosirakError, InvalidRequest, NotFound, Stale, StorageFull, Unavailable


def as_service_error(error: RepositoryError) -> DosirakError:
    """Returns the repository's failure as an error of the service; the sentence is kept."""
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
        case StoreFull():
            return StorageFull(str(error))
        case _:
            return Unavailable(f"The model repository cannot answer: {error}")


class Router:
    """Resolves references against one repository; `default_model` is used where a request names none."""

    def __init__(self, repository: Repository, default_model: str) -> None:
        self._repository = repository
        self._default_model = default_model

    @property
    def default_name(self) -> str:
        """Returns the name of the default model, without version and alias."""
        return self._default_model.partition("@")[0].partition(":")[0]

    def parse(self, reference: str | None) -> ModelReference:
        """Returns the parsed reference (None: that of the default model). Raises InvalidRequest for a malformed one."""
        try:
            return ModelReference.parse(reference or self._default_model)
        except RepositoryError as error:
            raise as_service_error(error) from None

    def resolve(self, reference: ModelReference | str | None) -> Manifest:
        """Returns the version that a reference means now. Raises InvalidRequest for a malformed reference, NotFound
        where the reference leads to no version."""
        parsed = reference if isinstance(reference, ModelReference) else self.parse(reference)
        try:
            return self._repository.resolve(parsed)
        except RepositoryError as error:
            raise as_service_error(error) from None
