"""A hub made of a local server with the hub's routes: listings, files with ETag and Range, and ways to fail.

>>> with FakeHub() as hub: hub.push("org/tiny", directory); print(hub.url, hub.requests)

    GET  /api/models/{id}/revision/{revision}   commit, and files with sizes and digests where `blobs` is asked for
    GET  /api/models/{id}/tree/{revision}       the same as huggingface_hub's own snapshots ask for it
    GET  /{id}/resolve/{revision}/{file}        the file, or what Range asks for; HEAD tells its headers
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

LARGE = ("safetensors", "bin", "gguf")
"""Endings of files that the hub keeps by their sha256 (Git LFS)."""
PIECE = 1 << 16


@dataclass
class Asked:
    """One request: its method, its path, the first byte that it asked for, and the bytes that it got."""

    method: str
    path: str
    first: int = 0
    sent: int = 0


@dataclass
class Repo:
    branches: dict[str, str] = field(default_factory=dict)
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    told_sizes: dict[str, int] = field(default_factory=dict)
    gated: bool = False


class FakeHub:
    """Runs while it is entered. `break_after` ends connections of weights after so many bytes, `stall_after` holds them
    there until `go_on` is set; `damaged` sends other bytes than are listed; `status` answers everything with a
    status."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.requests: list[Asked] = []
        self.break_after: int | None = None
        self.stall_after: int | None = None
        self.go_on = threading.Event()
        self.ranges = True
        self.damaged = False
        self.status: int | None = None
        self.token: str | None = None
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def push(self, id: str, directory: Path, branch: str = "main", leave_out: tuple[str, ...] = ()) -> str:
        """Commits the files of a directory to a branch; returns the commit."""
        files = {
            str(each.relative_to(directory)): each.read_bytes()
            for each in sorted(directory.rglob("*"))
            if each.is_file() and each.name not in leave_out
        }
        digest = hashlib.sha1(repr(sorted((name, _sha256(data)) for name, data in files.items())).encode())
        repo = self.repos.setdefault(id, Repo())
        repo.commits[digest.hexdigest()] = files
        repo.branches[branch] = digest.hexdigest()
        return digest.hexdigest()

    def weights_sent(self) -> list[Asked]:
        return [each for each in self.requests if each.method == "GET" and each.path.endswith(LARGE)]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.go_on.set()
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, with_body: bool) -> None:
        address = urlsplit(self.path)
        path = unquote(address.path)
        asked = Asked(self.command, path)
        self.hub.requests.append(asked)
        if self.hub.status is not None:
            self._refuse(self.hub.status, "")
        elif listed := re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/(.+)", path):
            self._list(listed[1], listed[2], "blobs" in parse_qs(address.query))
        elif listed := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/(.+)", path):
            self._list_tree(listed[1], listed[2])
        elif file := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._send_file(asked, file[1], file[2], file[3], with_body)
        else:
            self._refuse(404, "EntryNotFound")

    def _found(self, id: str, revision: str) -> tuple[Repo, str] | None:
        repo = self.hub.repos.get(id)
        if repo is None:
            self._refuse(401, "RepoNotFound")
            return None
        commit = repo.branches.get(revision, revision)
        if commit not in repo.commits:
            self._refuse(404, "RevisionNotFound")
            return None
        return repo, commit

    def _list(self, id: str, revision: str, blobs: bool) -> None:
        if (found := self._found(id, revision)) is None:
            return
        repo, commit = found
        files = [_sibling(name, data, repo.told_sizes.get(name), blobs) for name, data in repo.commits[commit].items()]
        self._send(200, json.dumps({"id": id, "sha": commit, "siblings": files}).encode(), {})

    def _list_tree(self, id: str, revision: str) -> None:
        if (found := self._found(id, revision)) is None:
            return
        siblings = [_sibling(name, data, None, True) for name, data in found[0].commits[found[1]].items()]
        tree = [
            {
                "type": "file",
                "path": each["rfilename"],
                "size": each["size"],
                "oid": each["blobId"],
                **({"lfs": {**each["lfs"], "oid": each["lfs"]["sha256"]}} if "lfs" in each else {}),
            }
            for each in siblings
        ]
        self._send(200, json.dumps(tree).encode(), {})

    def _send_file(self, asked: Asked, id: str, revision: str, name: str, with_body: bool) -> None:
        if (found := self._found(id, revision)) is None:
            return
        repo, commit = found
        if repo.gated and self.headers.get("Authorization") != f"Bearer {self.hub.token}":
            self._refuse(401, "GatedRepo")
            return
        if (data := repo.commits[commit].get(name)) is None:
            self._refuse(404, "EntryNotFound")
            return
        headers = {"X-Repo-Commit": commit, "ETag": f'"{_sha256(data)}"', "Accept-Ranges": "bytes"}
        begin = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        asked.first = int(begin[1]) if begin and self.hub.ranges else 0
        status = 206 if asked.first else 200
        if asked.first:
            headers["Content-Range"] = f"bytes {asked.first}-{len(data) - 1}/{len(data)}"
        data = bytes(len(data)) if self.hub.damaged and name.endswith(LARGE) else data
        self._send(status, data[asked.first :], headers, with_body, asked, name.endswith(LARGE))

    def _send(
        self,
        status: int,
        data: bytes,
        headers: dict[str, str],
        with_body: bool = True,
        asked: Asked | None = None,
        large: bool = False,
    ) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        for at in range(0, len(data) if with_body else 0, PIECE):
            if large and self._ends_at(at):
                self.close_connection = True
                return
            piece = data[at : at + PIECE]
            with suppress(ConnectionError):
                self.wfile.write(piece)
            if asked is not None:
                asked.sent += len(piece)

    def _ends_at(self, at: int) -> bool:
        """Whether a connection ends before the byte `at`; it may wait there."""
        if self.hub.stall_after is not None and at >= self.hub.stall_after:
            self.wfile.flush()
            self.hub.go_on.wait()
        return self.hub.break_after is not None and at >= self.hub.break_after

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, b"{}", {"X-Error-Code": code} if code else {})


def _sibling(name: str, data: bytes, told: int | None, blobs: bool) -> dict[str, Any]:
    if not blobs:
        return {"rfilename": name}
    blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    shown: dict[str, Any] = {"rfilename": name, "size": told or len(data), "blobId": blob}
    if name.endswith(LARGE):
        shown["lfs"] = {"sha256": _sha256(data), "size": told or len(data), "pointerSize": 134}
    return shown


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def reached(hub: FakeHub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets this process's huggingface_hub ask `hub`, and no token or cache of the machine."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
    template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(cache / "token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
