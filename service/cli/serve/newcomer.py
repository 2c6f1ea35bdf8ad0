"""A newcomer starts an empty repository and names no model. The catalogue's first model is shown then, where the Python
index gives it in seconds, and else the demo model. This module decides and fetches nothing.

    the repository has            `dosirak serve` without MODEL serves
    nothing                       the catalogue's first model, fetched now; else the demo model, published now
    that model, and no demo       that model
    anything else                 DOSIRAK_DEFAULT_MODEL, which is `demo` where it is unset

Whoever sets DOSIRAK_DEFAULT_MODEL has that served, whatever there is.
"""

from __future__ import annotations

from models.imports import catalogue
from models.imports.catalogue import Entry
from models.imports.starter import DEMO, demo_is_wanted, first_is_there
from models.repository.repository import Repository
from service.settings import Settings


def names_default(settings: Settings) -> bool:
    """Returns whether the environment names the default model."""
    return "default_model" in settings.model_fields_set


def entry_for(settings: Settings, repository: Repository | None) -> Entry | None:
    """Returns the catalogue's entry that a start without MODEL is for; None where it is for the default model.
    `repository` None is a directory that has none yet."""
    if names_default(settings) or (repository and repository.versions(DEMO)):
        return None
    if repository and first_is_there(repository):
        return catalogue.first()
    is_empty = repository is None or (not repository.models() and demo_is_wanted(repository))
    return catalogue.first() if is_empty and settings.is_alone else None
