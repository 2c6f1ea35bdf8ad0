"""A verb of the command line, run in this process."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from models.errors import RepositoryError
from service import cli


def run(*words: str) -> str:
    """The output of a verb that succeeds."""
    result = CliRunner().invoke(cli.app, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def refused(*words: str) -> str:
    """The sentence of a verb that the repository refuses."""
    with pytest.raises(RepositoryError) as error:
        run(*words)
    return str(error.value)
