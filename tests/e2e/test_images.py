"""The images, built from nothing but this checkout and run: what they weigh, what they hold, how they serve and end;
and the bento's, as BentoML's users build it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import bentoml
import httpx
import pytest

from loadtest.bench.running import free_port
from tests.e2e import built_image
from tests.e2e.bento import build as build_bento
from tests.e2e.bento import environment
from tests.e2e.built_image import Built, buildah, cache
from tests.e2e.server import ROOT, python

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(built_image.missing() is not None, reason=built_image.missing() or ""),
]
BUILD_SECONDS = 3000
MOST_MB = {"cpu": 1000, "demo": 1000, "api": 300}
WRAPPER = """#!{python}
import os, sys
given = sys.argv[1:]
if given[:1] != ["bud"] and given[:1] != ["build"]:
    os.execv({buildah!r}, ["buildah", *given])
kept = [word for word in given[1:] if word != "--load" and not word.startswith("--progress")]
if "--progress" in given:
    kept.remove(given[given.index("--progress") + 1])
os.execv({buildah!r}, [*{store!r}, "bud", "--isolation", "chroot", "--from", "localhost/dosirak-bento-base",
    "--volume", "{wheels}:/wheels:ro", *kept])
"""
BASE = """FROM localhost/dosirak-base
RUN apt-get update && apt-get install --yes --no-install-recommends python3-venv && ln -s python3 /usr/local/bin/python
RUN python3 -m venv /uv && /uv/bin/pip install --no-index --find-links /uv-wheel uv
RUN ln -s /uv/bin/uv /usr/local/bin/uv
RUN mkdir /etc/uv && printf '[pip]\\nno-index = true\\nfind-links = ["/wheels"]\\n' >/etc/uv/uv.toml
"""


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


@pytest.fixture(scope="module")
def bento_image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tag of what `bentoml containerize` builds with buildah. Its base and its packages are those of our own image;
    buildah of Debian 12 does not know two of BentoML's options."""
    folder = tmp_path_factory.mktemp("bento")
    built_image.build("cpu", folder / "cpu.tar", BUILD_SECONDS)
    _make_base(folder)
    bento = build_bento(folder / "home")
    program = shutil.which("buildah")
    wrapper = folder / "tools" / "buildah"
    wrapper.parent.mkdir()
    text = WRAPPER.format(python=sys.executable, buildah=program, store=buildah(), wheels=cache() / "wheels")
    wrapper.write_text(text)
    wrapper.chmod(0o755)
    variables = environment(bento.home)
    command = python(
        "-m", "bentoml", "containerize", bento.tag, "--backend", "buildah", "--image-tag", "dosirak-bento:test"
    )
    path = {"PATH": f"{wrapper.parent}:{variables['PATH']}"}
    done = subprocess.run(
        command, cwd=ROOT, env=variables | path, capture_output=True, text=True, timeout=BUILD_SECONDS
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return "localhost/dosirak-bento:test"


def _make_base(folder: Path) -> None:
    wheel = folder / "uv"
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "-qq", "--no-deps", "--dest", wheel, "uv"], check=True, timeout=300
    )
    (folder / "Dockerfile").write_text(BASE)
    command = buildah(
        "bud", "--isolation", "chroot", "--volume", f"{wheel}:/uv-wheel:ro", "--tag", "dosirak-bento-base"
    )
    subprocess.run([*command, str(folder)], check=True, capture_output=True, timeout=600)


@contextmanager
def served(tag: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """The image's entry point, in process ids of its own, so that nothing of it outlives the test."""
    container = subprocess.run(buildah("from", tag), check=True, capture_output=True, text=True).stdout.strip()
    words = buildah(
        "run", "--isolation", "chroot", "--user", "bentoml", "--env", "BENTOML_HOST=127.0.0.1", container, "--"
    )
    entry = ["/home/bentoml/bento/env/docker/entrypoint.sh", "serve", "--port", str(port)]
    process = subprocess.Popen(["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *words, *entry])
    try:
        yield process
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        subprocess.run(buildah("rm", container), check=False, capture_output=True)


def test_bentoml_containerize_makes_an_image_that_serves(bento_image: str) -> None:
    port = free_port()
    with served(bento_image, port) as process:
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline and process.poll() is None:
            try:
                if httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=2).status_code == 200:
                    break
            except httpx.HTTPError:
                time.sleep(0.2)
        with bentoml.SyncHTTPClient(f"http://127.0.0.1:{port}") as client:
            answer = client.generate(prompt="안녕하세요", max_new_tokens=8)
        assert answer["model"] == "demo:2" and answer["generated_text"]
        kernels = httpx.get(f"http://127.0.0.1:{port}/info", timeout=60).text
        assert "native kernels" in kernels, "they were compiled in the build"
