"""Settings are what their names say: a misspelt one, or a key that is none, stops the start by a sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from service.environment import child_environment
from service.settings import PREFIX, Settings, refused_names
from tests.e2e.server import ROOT

NAMES = sorted(name.upper() for name in Settings.model_fields)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("DOSIRAK_HOSTT", "DOSIRAK_HOST"),
        ("dosirak_prt", "DOSIRAK_PORT"),
        ("DOSIRAK_API_KEY", "DOSIRAK_ADMIN_KEY"),
        ("DOSIRAK_MAX_NUM_SEQ", "DOSIRAK_MAX_NUM_SEQS"),
        ("DOSIRAK_SESSIONS_TTL", "DOSIRAK_SESSIONS_TTL_SECONDS"),
    ],
)
def test_a_misspelt_setting_is_refused_with_the_right_one(
    name: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "1")
    with pytest.raises(ValidationError, match=f"{name} is no setting: did you mean {meant}?"):
        Settings()


def test_what_resembles_none_is_refused_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOSIRAK_QQQQ", "1")
    monkeypatch.setenv("DOSIRAK_HOSTT", "1")
    with pytest.raises(ValidationError) as refused:
        Settings()
    assert "DOSIRAK_QQQQ is no setting: remove it; docs/settings.md lists" in str(refused.value)
    assert "did you mean DOSIRAK_HOST?" in str(refused.value), "all of them at once"


def test_arguments_are_settings_too() -> None:
    with pytest.raises(ValidationError, match="hostt"):
        Settings(hostt="127.0.0.1")  # type: ignore[call-arg]


@pytest.mark.parametrize("name", ["SERVICE_HOST", "SERVICE_PORT_HTTP", "PORT_3000_TCP", "PORT_3000_TCP_ADDR"])
def test_what_kubernetes_adds_is_called_by_its_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"DOSIRAK_{name}", "tcp://10.0.0.1:3000")
    monkeypatch.setenv("DOSIRAK_PORT", "tcp://10.0.0.1:3000")
    with pytest.raises(ValidationError, match="enableServiceLinks: false"):
        Settings()


@given(st.text(alphabet="ABCDEFGHIJKLMNOPQRSTUVWXYZ_abc0", max_size=30))
def test_every_name_is_a_setting_or_refused(name: str) -> None:
    refused = refused_names([PREFIX + name], Settings.model_fields)
    assert len(refused) == (name.upper() not in NAMES)


@given(st.sampled_from(NAMES), st.data())
def test_a_letter_too_many_or_too_few_is_seen(name: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(name)))
    for spelled in (name[:at] + "Q" + name[at:], name[: at - 1] + name[at:] if at else name[1:]):
        refused = refused_names([PREFIX + spelled], Settings.model_fields)
        assert not refused if spelled in NAMES else "did you mean DOSIRAK_" in refused[0]


def test_names_without_the_prefix_are_left_alone() -> None:
    assert refused_names(["PATH", "DOSIRAKHOST", "XDOSIRAK_HOSTT"], Settings.model_fields) == []


@pytest.mark.parametrize("key", ["", " ", "secret ", "\tsecret"])
def test_a_key_that_cannot_be_sent_is_refused(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty one would open the server to all who send `Authorization: Bearer`."""
    monkeypatch.setenv("DOSIRAK_ADMIN_KEY", key)
    monkeypatch.setenv("DOSIRAK_HOST", "0.0.0.0")
    with pytest.raises(ValidationError, match="at least one character"):
        Settings()


@pytest.mark.parametrize(
    "command",
    [
        ("-m", "service.cli", "serve"),
        ("-m", "service.cli", "model", "list"),
        ("-m", "bentoml", "serve", "service.bento:Dosirak"),
    ],
    ids=["serve", "a command", "bentoml"],
)
def test_every_way_to_start_says_so(command: tuple[str, ...], tmp_path: Path) -> None:
    environment = {"DOSIRAK_HOSTT": "1", "HOME": str(tmp_path), "BENTOML_HOME": str(tmp_path), "PATH": ""}
    environment["BENTOML_DO_NOT_TRACK"] = "true"
    ended = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.returncode not in (0, None)
    assert "DOSIRAK_HOSTT is no setting: did you mean DOSIRAK_HOST?" in " ".join((ended.stdout + ended.stderr).split())


def test_a_server_in_another_directory_has_the_same_paths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`dosirak serve` reads relative paths where it was started, and so must the server that it starts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("dosirak_data_dir", "data")
    monkeypatch.setenv("DOSIRAK_GUARD_FILE", "guard.toml")
    monkeypatch.setenv("DOSIRAK_VLLM_PYTHON", "")
    monkeypatch.setenv("DOSIRAK_DATABASE_URL", "sqlite+aiosqlite:///a%20b.db?timeout=5")
    settings = Settings()
    environment = child_environment(settings)
    for name in [each for each in os.environ if each.upper().startswith(PREFIX)]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        if name.upper().startswith(PREFIX):
            monkeypatch.setenv(name, value)
    monkeypatch.chdir("/")
    again = Settings()
    assert (again.data_dir, again.guard_file) == (tmp_path / "data", tmp_path / "guard.toml")
    assert again.session_database == f"sqlite+aiosqlite:///{tmp_path}/a%20b.db?timeout=5"
    assert again == settings and again.vllm_python is None


def test_an_empty_directory_is_no_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = Settings().data_dir
    monkeypatch.setenv("DOSIRAK_DATA_DIR", "")
    assert Settings().data_dir == usual


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("ADMIN_KEY", "비밀번호", "of ASCII characters alone"),
        ("ADMIN_KEY", "a\nb", "of ASCII characters alone"),
        ("DRAIN_SECONDS", "inf", "finite number"),
        ("HEADER_SECONDS", "inf", "finite number"),
        ("DRAIN_SECONDS", "1e9", "less than or equal to 86400"),
        ("DATA_DIR", "~nobodyx/data", "~nobodyx/data begins with a user who has no home directory: write the whole"),
    ],
)
def test_what_could_not_act_is_refused(name: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"DOSIRAK_{name}", value)
    with pytest.raises(ValidationError, match=said):
        Settings()
