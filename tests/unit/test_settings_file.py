"""A settings file: what it may say, the sentence for what it may not, and that the environment wins over it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as without_deadline
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from service import cli
from service.cli.serve import serving
from service.cli.settings import MOST_BYTES, Line, WrongFile, parse, read_settings_file
from service.environment import add_to_environment
from service.settings import Settings


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """The command changes the environment of its process, which is ours here."""
    before = dict(os.environ)
    os.environ.pop("DOSIRAK_DEFAULT_MODEL", None)
    monkeypatch.setenv("DOSIRAK_DATA_DIR", str(tmp_path / "data"))
    yield
    os.environ.clear()
    os.environ.update(before)


def wrong(text: str) -> str:
    with pytest.raises(WrongFile) as refused:
        parse(text, "t.env")
    return str(refused.value)


def test_lines_with_their_numbers() -> None:
    text = "# made by tune\n\nDOSIRAK_THREADS=2\r\n  dosirak_default_model = demo:2 \nDOSIRAK_ACTOR=a=b\n"
    assert parse(text, "t.env") == {
        "DOSIRAK_THREADS": Line("2", 3),
        "DOSIRAK_DEFAULT_MODEL": Line("demo:2", 4),
        "DOSIRAK_ACTOR": Line("a=b", 5),
    }


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("DOSIRAK_THREDS=2", "t.env, line 2: DOSIRAK_THREDS is no setting: did you mean DOSIRAK_THREADS?"),
        ("PATH=/bin", "t.env, line 2: PATH is no setting: names begin with DOSIRAK_"),
        ("DOSIRAK_THREADS", "t.env, line 2: a line is NAME=value, as in DOSIRAK_PORT=3000"),
        ("export DOSIRAK_THREADS=2", "t.env, line 2: a line is NAME=value"),
        ("=2", "t.env, line 2: a line is NAME=value"),
        ("DOSIRAK_PORT=3001", "t.env, line 2: DOSIRAK_PORT is set in line 1 already"),
        ('DOSIRAK_ACTOR="kim"', "t.env, line 2: DOSIRAK_ACTOR: take the quotes out"),
        ("DOSIRAK_ACTOR=kim # her", "t.env, line 2: DOSIRAK_ACTOR: put the comment on a line of its own"),
    ],
)
def test_a_wrong_line_is_refused_by_its_number(line: str, said: str) -> None:
    assert said in wrong(f"DOSIRAK_PORT=3000\n{line}\n")


def test_all_wrong_lines_at_once() -> None:
    said = wrong("A=1\nDOSIRAK_PORT=1\nB\n").split("\n")
    assert [each.split(":")[0] for each in said] == ["t.env, line 1", "t.env, line 3"]


def test_a_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(b"#" * (MOST_BYTES + 1))
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    for name, said in [("gone", "cannot be read"), ("long", "larger than 64 kB"), ("bytes", "no text in UTF-8")]:
        with pytest.raises(WrongFile, match=said):
            read_settings_file(tmp_path / name)
    (tmp_path / "full").write_bytes(b"#" * MOST_BYTES)
    assert read_settings_file(tmp_path / "full") == {}


@without_deadline(deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_lines_or_a_sentence_with_a_number(text: str) -> None:
    try:
        found = parse(text, "t.env")
    except WrongFile as error:
        assert all(each.startswith("t.env, line ") for each in error.sentences)
    else:
        assert {name.removeprefix("DOSIRAK_").lower() for name in found} <= set(Settings.model_fields)


def test_the_environment_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOSIRAK_THREADS", "1")
    monkeypatch.setenv("dosirak_port", "3007")
    monkeypatch.delenv("DOSIRAK_MAX_NUM_SEQS", raising=False)
    given = {"DOSIRAK_THREADS": "2", "DOSIRAK_PORT": "3007", "DOSIRAK_MAX_NUM_SEQS": "9"}
    assert add_to_environment(given) == {"DOSIRAK_THREADS": "1"}
    settings = Settings()
    assert (settings.threads, settings.port, settings.max_num_seqs) == (1, 3007, 9)


def serve(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str, list[Settings]]:
    """`dosirak serve --settings` of a file with this text, and the settings that a server would have."""
    got = list[Settings]()

    def take(settings: Settings, console: Console) -> int:
        got.append(settings)
        return 0

    monkeypatch.setattr(serving, "serve", take)
    file = tmp_path / "tuned.env"
    file.write_text(text)
    ended = CliRunner().invoke(cli.app, ["serve", "--settings", str(file)], catch_exceptions=False)
    return ended.exit_code, " ".join(ended.output.split()), got


def test_serve_takes_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOSIRAK_THREADS", "1")
    text = "# c\nDOSIRAK_REPLICAS=2\nDOSIRAK_THREADS=2\nDOSIRAK_DEFAULT_MODEL=demo:2\n"
    status, said, got = serve(tmp_path, text, monkeypatch)
    assert status == 0 and (got[0].replicas, got[0].threads, got[0].default_model) == (2, 1, "demo:2")
    assert "DOSIRAK_THREADS of the environment wins over" in said and "tuned.env, line 3" in said
    assert os.environ["DOSIRAK_REPLICAS"] == "2", "the server is a child, and reads them there"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("#\nDOSIRAK_REPLICAS=0\n", "tuned.env, line 2: DOSIRAK_REPLICAS: Input should be greater than or equal to 1"),
        ("DOSIRAK_REPLICS=1\n", "tuned.env, line 1: DOSIRAK_REPLICS is no setting: did you mean DOSIRAK_REPLICAS?"),
    ],
)
def test_serve_refuses_by_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str) -> None:
    status, shown, got = serve(tmp_path, text, monkeypatch)
    assert status == 2 and said in shown and not got


def test_a_value_of_the_environment_is_not_blamed_on_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOSIRAK_REPLICAS", "0")
    status, shown, _ = serve(tmp_path, "DOSIRAK_REPLICAS=2\n", monkeypatch)
    assert status == 2 and "line 1: DOSIRAK_REPLICAS:" not in shown and "DOSIRAK_REPLICAS: Input should be" in shown
