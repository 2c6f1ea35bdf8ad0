"""The command line: sentences instead of tracebacks, and the repository's verbs end to end on tiny checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from models.repository import Repository
from service import cli
from tests.checkpoints import save_llama
from tests.versions import publish


@pytest.fixture(autouse=True)
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DOSIRAK_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


def run(*words: str) -> str:
    result = CliRunner().invoke(cli.app, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_import_quantize_verify_list(tmp_path: Path, data_dir: Path) -> None:
    source = save_llama(tmp_path / "source")
    assert "published tiny:1 (bf16" in run("model", "import", str(source), "tiny")
    assert "published tiny:2 (int8" in run("model", "quantize", "tiny:1")
    assert "files as published" in run("model", "verify", "tiny:2")
    run("model", "promote", "tiny:2", "--reason", "a test")
    shown = run("model", "list")
    assert "tiny:1" in shown and "int8" in shown and "production" in shown
    assert Repository(data_dir).resolve("tiny").version == "2"


def test_promote_and_rollback(data_dir: Path) -> None:
    repository = Repository(data_dir)
    for content in ("one", "two"):
        publish(repository, content)
    run("model", "promote", "demo:1")
    run("model", "promote", "demo:2")
    assert "demo@production is now demo:1" in run("model", "rollback", "demo")


def test_a_fresh_installation_can_be_measured() -> None:
    shown = run("compare", "--texts", "1")
    assert "demo:1 bf16" in shown and "demo:2 int8" in shown


@pytest.mark.parametrize(
    "words",
    [("model", "verify", "nobody:1"), ("model", "promote", "no such"), ("model", "import", "/nonexistent", "tiny")],
    ids=" ".join,
)
def test_failures_are_sentences(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["dosirak", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    shown = capsys.readouterr().out
    assert ended.value.code == 1
    assert "error:" in shown and "Traceback" not in shown


def test_a_wrong_setting_names_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOSIRAK_PORT", "99999999")
    result = CliRunner().invoke(cli.app, ["model", "list"])
    assert result.exit_code == 2
    assert "DOSIRAK_PORT" in result.output
