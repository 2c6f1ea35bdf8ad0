"""A list's filter by the model that has answered: a name, or `name:version`. What is stored names versions, never an
alias."""

from __future__ import annotations

from models.errors import InvalidReference
from models.manifest import ModelReference
from service.errors import InvalidRequest


def model_filter(model: str) -> ModelReference:
    """Returns the name, with the version where one is named. Raises InvalidRequest for an alias, and for a text
    that is no reference."""
    try:
        reference = ModelReference.parse(model)
    except InvalidReference as error:
        raise InvalidRequest(f"`model` must be name or name:version: {error}", param="model") from None
    if reference.alias is not None:
        raise InvalidRequest(
            "`model` must be name or name:version: an alias moves from version to version, send the version",
            param="model",
        )
    return reference
