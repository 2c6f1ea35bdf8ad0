"""Files as OpenAI's clients use them: uploaded to the disk, listed, read, deleted, expired; hostile uploads refused."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import FileResponse

from service.api.edge.refused_bodies import MOST_BYTES
from service.storage.sessions.store import utc_now
from tests.api.conftest import KEY, Serve
from tests.api.reading import openai_error
from tests.fake_service import World, over_http, serving

LINES = b'{"custom_id": "a"}\n{"custom_id": "\xea\xb0\x80"}\n'


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    """With a data directory of its own."""
    return partial(serving, tmp_path)


def form(data: bytes = LINES, name: str = "in.jsonl", **fields: str) -> dict[str, Any]:
    return {"files": {"file": (name, data)}, "data": {"purpose": "batch", **fields}}


async def upload(world: World, data: bytes = LINES, **more: str) -> Any:
    response = await world.client.post("/v1/files", **form(data, **more))
    assert response.status_code == 200, response.text
    return response.json()


def on_disk(world: World) -> list[str]:
    directory = world.settings.data_dir / "files"
    return sorted(each.name for each in directory.iterdir()) if directory.exists() else []


async def test_openai_s_client(serve: Serve) -> None:
    openai = pytest.importorskip("openai")
    async with serve(admin_key=KEY) as world, over_http(world) as url:
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)
        expiry = {"anchor": "created_at", "seconds": 3600}
        made = await client.files.create(file=("두.jsonl", LINES), purpose="batch", expires_after=expiry)
        assert (made.filename, made.bytes, made.purpose, made.status) == ("두.jsonl", len(LINES), "batch", "processed")
        assert made.expires_at == made.created_at + 3600
        second = await client.files.create(file=b"{}\n", purpose="batch")
        assert second.expires_at == second.created_at + 30 * 86400
        assert await client.files.retrieve(made.id) == made
        assert (await client.files.content(made.id)).content == LINES
        assert [each.id async for each in client.files.list(limit=1)] == [second.id, made.id]
        assert [each.id async for each in client.files.list(order="asc", limit=1)] == [made.id, second.id]
        assert [each.id async for each in client.files.list(purpose="batch_output")] == []
        assert (await client.files.delete(made.id)).deleted
        with pytest.raises(openai.NotFoundError, match="GET /v1/files"):
            await client.files.content(made.id)
        assert on_disk(world) == [second.id]
        with pytest.raises(openai.BadRequestError, match="only batches read files"):
            await client.files.create(file=LINES, purpose="fine-tune")
        with pytest.raises(openai.BadRequestError, match=r"expires_after\.seconds"):
            await client.files.create(file=LINES, purpose="batch", expires_after={**expiry, "seconds": 5})
        assert on_disk(world) == [second.id]


@pytest.mark.parametrize(
    ("more", "status", "said"),
    [
        ({"files": {"file": ("in", b"x")}}, 400, "`purpose` is missing"),
        ({"data": {"purpose": "batch"}, "files": {"other": ("in", b"x")}}, 400, "`file` is missing"),
        ({"data": {"purpose": "batch"}, "files": [("file", ("a", b"x")), ("file", ("b", b"x"))]}, 400, "twice"),
        (form(colour="red"), 400, "`colour` is not a field"),
        (form(purpose="x" * 2000), 400, "`purpose` is longer"),
        (form(name="a" * 256), 400, "printable"),
        (form(gzip.compress(b"{}" * 1000)), 400, "compressed"),
        (form(b"PK\x03\x04"), 400, "compressed"),
        (form() | {"headers": {"Content-Encoding": "gzip"}}, 415, "Content-Encoding"),
        ({"json": {"purpose": "batch"}}, 415, "multipart/form-data"),
        ({"content": b"--x\r\n", "headers": {"Content-Type": "multipart/form-data"}}, 415, "boundary"),
        ({"content": b"zz", "headers": {"Content-Type": "multipart/form-data; boundary=x"}}, 400, "multipart"),
        (
            {"content": b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nhalf'}
            | {"headers": {"Content-Type": "multipart/form-data; boundary=x"}},
            400,
            "ends in the middle",
        ),
        (form(b"x" * 5000), 413, "larger than 4096 bytes"),
        (form(b"x" * 200_000), 413, "larger than 4096 bytes"),
    ],
)
async def test_hostile_uploads_leave_nothing(serve: Serve, more: dict[str, Any], status: int, said: str) -> None:
    async with serve(files_max_bytes=4096) as world:
        response = await world.client.post("/v1/files", **more)
        assert (response.status_code, said in response.text) == (status, True), response.text
        assert str(world.settings.data_dir) not in response.text
        assert on_disk(world) == []


async def test_a_body_without_an_end_is_cut_at_the_limit(serve: Serve) -> None:
    """It declares no size, and every byte would be kept. What comes behind the limit is dropped, up to a limit too."""
    sent = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal sent
        yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        while True:
            sent += 65536
            yield b"y" * 65536

    async with serve(files_max_bytes=1 << 20) as world:
        kind = {"Content-Type": "multipart/form-data; boundary=x"}
        response = await world.client.post("/v1/files", content=body(), headers=kind)
        assert response.status_code == 413 and sent <= (1 << 20) + MOST_BYTES + 3 * 65536
        assert on_disk(world) == []


async def test_the_total_has_its_own_refusal_with_the_numbers(serve: Serve) -> None:
    async with serve(files_total_bytes=12_000) as world:
        await upload(world)  # the smallest counts as a block of the disk
        first = await upload(world, b"x" * 7000)
        response = await world.client.post("/v1/files", **form(b"x" * 5000))
        assert response.status_code == 507 and response.json()["error"]["code"] == "storage_full"
        assert "12000" in response.text and "DOSIRAK_FILES_TOTAL_BYTES" in response.text
        assert len(on_disk(world)) == 2
        await world.client.delete(f"/v1/files/{first['id']}")
        await upload(world, b"x" * 5000)
        assert world.app.state.service.files.arriving == 0


@pytest.mark.parametrize("when", ["before its content is looked for", "before it is opened", "before it is sent"])
async def test_a_file_that_is_deleted_meanwhile_is_sent_whole_or_is_not_there(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    async with serve() as world:
        id = (await upload(world))["id"]
        files = world.app.state.service.files
        place = {"before its content is looked for": (files, "get"), "before it is opened": (files, "path")}
        owner, name = place.get(when, (FileResponse, "__call__"))
        real = getattr(owner, name)

        async def then_deleted(*arguments: Any) -> Any:
            monkeypatch.undo()
            if when == "before it is sent":
                await files.delete("anonymous", id)
                return await real(*arguments)
            found = await real(*arguments)
            await files.delete("anonymous", id)
            return found

        monkeypatch.setattr(owner, name, then_deleted)
        response = await world.client.get(f"/v1/files/{id}/content")
        if when == "before it is sent":
            assert (response.status_code, response.content) == (200, LINES)
        else:
            openai_error(response, 404, "not_found")
        assert on_disk(world) == []


async def test_another_owner_s_file_is_not_there(serve: Serve) -> None:
    async with serve() as world:
        mine = await upload(world)
        store = await world.app.state.service.answers.conversations.store()
        other = await store.files.add("mallory", "file-other", purpose="batch", filename="a", size=1, seconds=None)
        listed = (await world.client.get("/v1/files")).json()["data"]
        assert [each["id"] for each in listed] == [mine["id"]]
        for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
            foreign = await world.client.request(method, f"/v1/files/{other.id}{path}")
            unknown = await world.client.request(method, f"/v1/files/file-none{path}")
            assert (foreign.status_code, unknown.status_code) == (404, 404)
            assert foreign.text.replace(other.id, "file-none") == unknown.text
        assert (await world.client.get("/v1/files", params={"after": other.id})).status_code == 404


async def test_expiry_and_strays(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve() as world:
        files = world.app.state.service.files
        made = await upload(world, LINES, **{"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"})
        stays = await upload(world)
        files.contents.draft().write(b"left by a killed server")
        store = await world.app.state.service.answers.conversations.store()
        store._clock = lambda: utc_now() + timedelta(hours=2)
        assert (await world.client.get(f"/v1/files/{made['id']}")).status_code == 404
        await files.sweep()
        assert len(on_disk(world)) == 3, "a young draft may be somebody's"
        monkeypatch.setattr("service.storage.files.contents.STRAY_SECONDS", -1.0)
        await files.sweep()
        assert on_disk(world) == [stays["id"]]


async def test_a_field_beside_its_own_parts_is_refused(world: World) -> None:
    for names in (("expires_after", "expires_after[seconds]"), ("expires_after[seconds]", "expires_after")):
        fields = {"purpose": "batch"} | dict.fromkeys(names, "3600")
        response = await world.client.post("/v1/files", data=fields, files={"file": ("a.jsonl", LINES)})
        openai_error(response, 400, "invalid_request")


async def test_a_client_that_leaves_in_the_middle_leaves_nothing(serve: Serve) -> None:
    async with serve() as world, over_http(world) as url:
        host, port = url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        head = b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000000\r\n"
        writer.write(head + b"Content-Type: multipart/form-data; boundary=x\r\n\r\n")
        writer.write(b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + b"y" * 3_000_000)
        await writer.drain()
        async with asyncio.timeout(60):
            while not on_disk(world):
                await asyncio.sleep(0.01)
            writer.close()
            while on_disk(world):
                await asyncio.sleep(0.01)


async def test_no_content_and_no_path_in_the_log(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    async with serve() as world:
        made = await upload(world, b"a secret line\n")
        await world.client.get(f"/v1/files/{made['id']}/content")
        (world.settings.data_dir / "files" / made["id"]).unlink()
        gone = await world.client.get(f"/v1/files/{made['id']}/content")
        assert gone.status_code == 503 and "another instance" in gone.text
        told = "".join(capsys.readouterr())
        assert "secret" not in told and str(world.settings.data_dir) not in told + gone.text


def test_a_name_is_no_way_out(tmp_path: Path) -> None:
    from service.api.openai.files.uploads import _filename

    assert _filename(b"C:\\private\\..\\in.jsonl") == "in.jsonl" == _filename(b"../../in.jsonl")


async def test_range(serve: Serve) -> None:
    """Every status is one that the document has, with the text that it says."""
    async with serve() as world:
        path = f"/v1/files/{(await upload(world))['id']}/content"
        told = (await world.client.get("/openapi.json")).json()["paths"]["/v1/files/{file_id}/content"]["get"]
        whole = await world.client.get(path)
        found = {}
        for asked in ("bytes=2-5", "bytes=0-1,4-5", "lines=1", "bytes=99999-"):
            response = await world.client.get(path, headers={"Range": asked})
            kind = response.headers["content-type"].partition(";")[0]
            assert kind in told["responses"][str(response.status_code)]["content"], asked
            found[asked] = (response.status_code, kind)
            if asked == "bytes=2-5":
                assert response.content == LINES[2:6]
        assert found == {
            "bytes=2-5": (206, "application/x-ndjson"),
            "bytes=0-1,4-5": (206, "multipart/byteranges"),
            "lines=1": (400, "text/plain"),
            "bytes=99999-": (416, "text/plain"),
        }
        for tag, status in ((whole.headers["etag"], 206), ('"another"', 200)):
            part = await world.client.get(path, headers={"Range": "bytes=2-5", "If-Range": tag})
            assert part.status_code == status
