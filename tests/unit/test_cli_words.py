"""The command's words: its version, its help with examples that could be typed, and what a shell completes."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from models import __version__
from models.repository.repository import Repository
from service import cli
from service.cli.examples import EXAMPLES
from service.cli.terminal import complete_name, complete_reference
from tests.versions import publish

ROOT = Path(__file__).parents[2]
PROGRAM = "import sys; sys.argv[0] = 'dosirak'; from service.cli import main; main()"


@pytest.fixture(autouse=True)
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DOSIRAK_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


def verbs() -> dict[str, Any]:
    """Every verb by its words."""
    found: dict[str, Any] = {}

    def walk(command: Any, words: str) -> None:
        for name, each in getattr(command, "commands", {}).items():
            walk(each, f"{words} {name}".strip())
        if not getattr(command, "commands", None):
            found[words] = command

    walk(get_command(cli.app), "")
    return found


def test_version() -> None:
    result = CliRunner().invoke(cli.app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"dosirak {__version__}\n")


def test_the_main_help_says_what_all_verbs_share() -> None:
    shown = CliRunner().invoke(cli.app, ["--help"]).output
    for words in ("DOSIRAK_DATA_DIR", "Exit status:", "130", "  dosirak serve\n"):
        assert words in shown.replace(" \n", "\n") or words.strip() in shown, words


@pytest.mark.parametrize("name", verbs())
def test_every_verb_has_examples_in_its_help(name: str) -> None:
    shown = CliRunner().invoke(cli.app, [*name.split(), "--help"], env={"COLUMNS": "200"}).output
    examples = shown.partition("Example")[2].splitlines()[1:]
    assert [line for line in examples if "dosirak " in line], shown
    for line in EXAMPLES.get(name, ()):
        assert line in shown, line


@pytest.mark.parametrize("line", [line for lines in EXAMPLES.values() for line in lines])
def test_every_example_is_understood(line: str) -> None:
    """Parsed as typed, without being run."""
    words = shlex.split(line.rpartition("| ")[2])
    variables = [word for word in words if word.startswith("DOSIRAK_")]
    words = words[len(variables) :]
    assert words[0] == "dosirak"
    depth = max(count for count in (1, 2) if " ".join(words[1 : 1 + count]) in verbs())
    verbs()[" ".join(words[1 : 1 + depth])].make_context("dosirak", words[1 + depth :])


def test_every_example_is_of_a_verb() -> None:
    assert set(EXAMPLES) <= set(verbs())


def test_references_are_completed(data_dir: Path) -> None:
    assert complete_reference("") == [], "and no directory is made"
    assert not data_dir.exists()
    repository = Repository(data_dir)
    publish(repository, "one")
    publish(repository, "two", "chat")
    repository.promote("demo", "production", "1", "first")
    assert complete_reference("d") == ["demo", "demo:1", "demo@production"]
    assert complete_reference("demo:") == ["demo:1"] and complete_reference("demo@") == ["demo@production"]
    assert complete_name("") == ["chat", "demo"]


def test_a_wrong_setting_completes_nothing_and_says_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DOSIRAK_PORT", "no number")
    assert complete_reference("") == []
    assert capsys.readouterr() == ("", "")


def complete(typed: str, shell: str) -> list[str]:
    """What a shell's completion script gets: `typed` is the line up to the cursor."""
    variables = {
        "bash": {"COMP_WORDS": typed.replace(" ", "\n"), "COMP_CWORD": str(typed.count(" "))},
        "zsh": {"_TYPER_COMPLETE_ARGS": typed},
    }[shell]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env={**os.environ, **variables, "_DOSIRAK_COMPLETE": f"complete_{shell}"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def test_shells_complete_verbs_options_and_references(data_dir: Path) -> None:
    publish(Repository(data_dir), "one")
    assert complete("dosirak mod", "bash") == ["model"]
    assert complete("dosirak model show de", "bash") == ["demo", "demo:1"]
    assert "demo:1" in " ".join(complete("dosirak model promote demo:", "zsh")).replace("\\", "")
    assert "--policy" in complete("dosirak chat --po", "bash")


def test_completion_is_installed_for_the_shell(tmp_path: Path) -> None:
    """Into the home directory, as typer does; here the shell is named, there it is found out."""
    variables = {"HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "--install-completion", "bash"],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "completion installed" in done.stdout
    assert "_DOSIRAK_COMPLETE=complete_bash" in (tmp_path / ".bash_completions" / "dosirak.sh").read_text()
