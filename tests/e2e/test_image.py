"""The images, built from nothing but this checkout and run: what they weigh, what they hold, how they serve and end."""

from __future__ import annotations

import pytest

from tests.e2e import built_image
from tests.e2e.built_image import Built

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(built_image.missing() is not None, reason=built_image.missing() or ""),
]
BUILD_SECONDS = 3000
MOST_MB = {"cpu": 1000, "demo": 1000, "api": 300}


@pytest.fixture(scope="module", params=sorted(MOST_MB))
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    target = str(request.param)
    return built_image.build(target, tmp_path_factory.mktemp("image") / f"{target}.tar", BUILD_SECONDS)


def test_it_serves_and_ends_as_it_must(built: Built) -> None:
    """The findings of `--smoke`; each of them can fail, and the script's exit status says so too."""
    found = built.findings
    assert all(found.values()), built.printed
    for words in (
        "0 setuid",
        "0 build tools",
        "SBOM",
        "uid [10001]",
        "read-only",
        "exit status 0",
        "/data of another user",
    ):
        assert any(words in text for text in found), words
    if not built.archive.name.startswith("api"):
        assert any("streams are whole" in text for text in found)


def test_it_weighs_what_it_may(built: Built) -> None:
    assert built.unpacked <= MOST_MB[built.archive.stem]


def test_a_runtime_is_told_what_it_needs(built: Built) -> None:
    config = built.configuration()
    assert config["User"] == "10001:10001" and config["StopSignal"] == "SIGTERM" and "/data" in config["Volumes"]
    assert config["Entrypoint"][0] == "/usr/bin/tini" and config["Cmd"] == ["serve"]
    labels = {name.rpartition(".")[2]: value for name, value in config["Labels"].items()}
    assert labels["licenses"] == "Apache-2.0" and labels["version"] and labels["title"] == "dosirak"
