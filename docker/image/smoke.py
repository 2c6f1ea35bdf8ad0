"""The smoke run shows that a built image serves: as uid 10001, on a read-only root, through SIGTERM to exit 0.

`python3 smoke.py ROOT IMAGE_JSON TARGET`, as root. ROOT is where the image is mounted, IMAGE_JSON what `buildah
inspect` says of it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from container import Container, Image
from streams import Client, overlapping_streams

READY_SECONDS = 120.0
REFUSED_SECONDS = 5.0
END_SECONDS = 35.0
STREAM_SECONDS = 5.0
USER = 10001
TOOLS = ("gcc", "g++", "cc", "c++", "cpp", "clang", "ld", "as", "make", "cmake", "ninja", "pip", "pip3", "uv", "conda")
PACKAGES = ("pip", "setuptools", "ensurepip", "wheel")


@dataclass(frozen=True)
class Finding:
    holds: bool
    text: str


def main(root: str, description: str, target: str) -> int:
    image = Image.of(Path(root), json.loads(Path(description).read_text()))
    findings = [*of_files(image), *of_serving(image, target), of_foreign_data(image)]
    for finding in findings:
        print(f"  {'ok    ' if finding.holds else 'BROKEN'}  {finding.text}")
    return 0 if all(finding.holds for finding in findings) else 1


def of_files(image: Image) -> Iterator[Finding]:
    """What the image's files say: nothing runs as another user, nothing builds, and it tells what it holds."""
    raised = [path for path in image.files() if path.lstat().st_mode & 0o6000]
    yield Finding(not raised, f"{len(raised)} setuid and setgid files {[str(path) for path in raised[:3]] or ''}")
    found = [str(path) for path in image.files() if is_tool(path)]
    found += [str(path) for path in image.root.glob("**/*-packages/*") if path.name in PACKAGES]
    found += [str(path) for path in image.root.glob("usr/**/ensurepip")]
    yield Finding(not found, f"{len(found)} build tools {found[:3] or ''}")
    listed = json.loads((image.root / "opt/dosirak/sbom.json").read_text())
    components = len(listed["components"])
    yield Finding(listed["bomFormat"] == "CycloneDX" and components > 100, f"the SBOM lists {components} components")
    yield Finding(image.user == f"{USER}:{USER}", f"the user is {image.user}")


def is_tool(path: Path) -> bool:
    name = path.name.removeprefix("x86_64-linux-gnu-").removeprefix("aarch64-linux-gnu-")
    return path.parent.name in ("bin", "sbin") and name.rstrip("0123456789.-") in TOOLS


def of_serving(image: Image, target: str) -> Iterator[Finding]:
    """One container: its start, who it is, what it may write, an answer, streams over SIGTERM, its end."""
    with Container.started(image, data_owner=USER) as container:
        client = Client(container.port, container.key)
        seconds = container.until(client.is_ready, READY_SECONDS)
        if seconds is None:
            print(container.log()[-4000:])
            yield Finding(False, f"not ready within {READY_SECONDS:g} s; its log is above")
            return
        yield Finding(True, f"ready after {seconds:.1f} s")
        users = container.users()
        yield Finding(users == {USER}, f"{len(container.processes())} processes, all of uid {sorted(users)}")
        yield Finding(container.refuses_writes(), "the root is read-only")
        yield from of_refusals(container, client) if target == "api" else of_answers(container, client)


def of_refusals(container: Container, client: Client) -> Iterator[Finding]:
    """A server without an engine: it says so, on its own routes and on BentoML's, and ends."""
    for path, body in (("/generate", {"inputs": "안녕하세요"}), ("/bento/generate", {"prompt": "안녕하세요"})):
        status, told = client.post(path, body)
        yield Finding(status == 503 and told["code"] == "no_engine", f"{path} is refused: {told['error']}")
    container.terminate()
    yield of_exit(*container.end(END_SECONDS))


def of_exit(status: int | None, seconds: float) -> Finding:
    return Finding(status == 0, f"exit status {status}, {seconds:.1f} s after SIGTERM (at most {END_SECONDS:g})")


def of_answers(container: Container, client: Client) -> Iterator[Finding]:
    """An answer, then streams of at least five seconds, with SIGTERM in their middle: none may lose a token."""
    status, told = client.post("/generate", {"inputs": "안녕하세요", "parameters": {"max_new_tokens": 8}})
    yield Finding(status == 200 and bool(told.get("generated_text")), f"{told.get('model')} answers")
    kernels = client.get("/")["kernels"]
    yield Finding(any(each.startswith("native kernels") for each in kernels), ", ".join(kernels))
    streams = overlapping_streams(client, STREAM_SECONDS)
    streams.until_all_began()
    time.sleep(STREAM_SECONDS / 5)
    container.terminate()
    ended = container.end(END_SECONDS)
    whole, of = streams.whole(), len(streams.counts)
    yield Finding(
        whole == of, f"{whole} of {of} streams are whole, the longest {streams.seconds():.1f} s, over SIGTERM"
    )
    yield Finding(streams.seconds() >= STREAM_SECONDS, f"a stream took {streams.seconds():.1f} s")
    yield of_exit(*ended)


def of_foreign_data(image: Image) -> Finding:
    """A data directory of another user: the container must end at once and say what to do."""
    with Container.started(image, data_owner=0) as container:
        status, took = container.end(REFUSED_SECONDS)
        said = "chown 10001" in container.log()
    return Finding(
        status == 1 and said, f"/data of another user: exit status {status} after {took:.1f} s, with the way out"
    )


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
