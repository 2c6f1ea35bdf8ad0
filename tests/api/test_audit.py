"""The audit of a server: no route that changes something is forgotten, a change of keys needs its row, and no row holds
a secret or a client's text."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from models.repository.repository import Repository
from service import cli
from service.api.edge.audited import GIVING, OPERATIONS
from service.api.router import plain_routes
from service.errors import InvalidRequest, NotFound, StorageFull, Unavailable
from service.storage.audit.trail import Trail
from service.ui import routes as ui
from tests.api.conftest import KEY
from tests.fake_service import World, publish, serving
from tests.waiting import until

OPERATOR: Final = {"Authorization": f"Bearer {KEY}"}
EXEMPT: Final = {
    "it generates or counts, and stores what its own caller asks for": """
        POST / | POST /generate | POST /generate_stream | POST /tokenize | POST /detokenize | POST /chat_tokenize
        POST /v1/context/preview | POST /v1/messages | POST /v1/messages/count_tokens | POST /v1/completions
        POST /v1/embeddings | POST /v1/chat/completions | POST /v1/responses | POST /v1/responses/input_tokens
        POST /v2/models/{}/generate | POST /v2/models/{}/generate_stream | POST /v2/models/{}/infer
        POST /v2/models/{}/versions/{}/generate | POST /v2/models/{}/versions/{}/generate_stream
        POST /v2/models/{}/versions/{}/infer | POST /v1/sessions/{}/regenerate""",
    "as these; a body without text loads or unloads, which its handler notes": """
        POST /api/chat | POST /api/generate | POST /api/embed | POST /api/embeddings""",
    "it adds or changes what is its caller's own": """
        POST /v1/chat/completions/{} | POST /v1/files | POST /v1/batches | POST /v1/sessions | POST /v1/sessions/import
        PATCH /v1/sessions/{} | POST /v1/sessions/{}/fork | PATCH /v1/sessions/{}/messages/{} | POST /v1/conversations
        POST /v1/conversations/{} | POST /v1/conversations/{}/items | POST /v1/knowledge | POST /v1/feedback""",
    "it ends its caller's own work": "POST /v1/responses/{}/cancel | POST /v1/batches/{}/cancel",
    "it changes nothing": """
        POST /v1/repository/models/{}/versions/{}/verify | POST /v1/profiles | POST /v2/repository/index
        POST /api/show""",
    "a wrong key is told as `sign-in`, a right one does nothing yet": "POST /ui/sign-in | POST /ui/sign-out",
}
"""Routes that write, without a row, by the reason."""
VERSION: Final = "/v1/repository/models/other/versions"
ALIAS: Final = "/v1/repository/models/other/aliases/stable"
TEXT: Final = [{"role": "user", "content": "salmon"}]


def shape(path: str) -> str:
    return re.sub(r"\{[^}]*\}", "{}", path)


def test_no_route_that_writes_is_forgotten() -> None:
    routes = {(method, route.path) for route in plain_routes(ui) for method in route.methods or ()}
    writing = {each for each in routes if each[0] not in ("GET", "HEAD")}
    exempt = {tuple(row.split()) for rows in EXEMPT.values() for row in re.split(r"[|\n]", rows.strip()) if row.split()}
    told = {(method, shape(path)) for method, path in OPERATIONS}
    assert OPERATIONS.keys() <= routes
    assert not told & exempt
    odd = {(method, shape(path)) for method, path in writing} ^ (told | exempt)
    assert not odd, "routes that write have a row in OPERATIONS of edge/audited.py, or stand in EXEMPT with a reason"
    for (_, path), operation in OPERATIONS.items():
        named = set(re.findall(r"\{(\w+)\}", operation.subject))
        assert named - {"made", "model"} <= set(re.findall(r"\{(\w+)\}", path)), path


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    for name in ("demo", "other", "other", "other"):
        publish(Repository(tmp_path), name)
    async with serving(tmp_path, admin_key=KEY, worker="tests.fake_job") as served:
        served.client.headers.update(OPERATOR)
        yield served


async def rows(world: World, **wanted: Any) -> list[dict[str, Any]]:
    """What the audit says, oldest first."""
    await world.app.state.service.audit.flush()
    found, cursor = list[dict[str, Any]](), dict[str, str]()
    while True:
        answer = await world.client.get("/v1/audit", params={"limit": 100, **wanted, **cursor})
        assert answer.status_code == 200, answer.text
        found += answer.json()["data"]
        if (next_cursor := answer.json()["next_cursor"]) is None:
            return found[::-1]
        cursor = {"cursor": next_cursor}


async def sent(world: World, method: str, path: str, body: Any = None, **options: Any) -> Any:
    answer = await world.client.request(method, path, json=body, **options)
    assert answer.is_success, f"{method} {path}: {answer.text}"
    return answer.json() if answer.content else {}


async def test_every_operation_is_told(world: World) -> None:
    key = (await sent(world, "POST", "/v1/keys", {"name": "shop", "scopes": ["generate"]}))["id"]
    made = {
        "session": await sent(world, "POST", "/v1/sessions", {}),
        "conversation": await sent(world, "POST", "/v1/conversations", {"items": TEXT}),
        "knowledge": await sent(world, "POST", "/v1/knowledge", {"text": "tea"}),
        "response": await sent(world, "POST", "/v1/responses", {"input": "hi", "max_output_tokens": 2}),
        "completion": await sent(world, "POST", "/v1/chat/completions", {"messages": TEXT, "store": True}),
        "file": await sent(
            world, "POST", "/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", b'{"a": 1}')}
        ),
    }
    ids = {name: each["id"] for name, each in made.items()}
    turn = {"session_id": ids["session"], "messages": TEXT, "parameters": {"max_new_tokens": 2}}
    await sent(world, "POST", "/generate", turn)
    message = (await sent(world, "GET", f"/v1/sessions/{ids['session']}/messages"))["data"][0]["id"]
    item = (await sent(world, "GET", f"/v1/conversations/{ids['conversation']}/items"))["data"][0]["id"]
    session, conversation = f"/v1/sessions/{ids['session']}", f"/v1/conversations/{ids['conversation']}"
    ollama, unload = {"model": "demo:1"}, {"keep_alive": 0}
    rollout = {"candidate": "3", "weight": 5, "override": True}
    steps: list[tuple[str, str, Any, str, str, str]] = [
        ("PATCH", f"/v1/keys/{key}", {"scopes": ["metrics"]}, "keys.change", key, "done"),
        ("POST", f"/v1/keys/{key}/rotate", None, "keys.rotate", key, "done"),
        ("DELETE", f"/v1/keys/{key}", None, "keys.delete", key, "done"),
        ("PUT", ALIAS, {"version": "1"}, "aliases.promote", "other@stable", "done"),
        ("PUT", ALIAS, {"version": "2"}, "aliases.promote", "other@stable", "done"),
        ("POST", f"{ALIAS}/rollback", {"reason": "worse"}, "aliases.rollback", "other@stable", "done"),
        ("PUT", f"{ALIAS}/rollout", rollout, "rollouts.put", "other@stable", "done"),
        ("DELETE", f"{ALIAS}/rollout", None, "rollouts.abort", "other@stable", "done"),
        ("PUT", f"{ALIAS}/rollout", rollout, "rollouts.put", "other@stable", "done"),
        ("POST", f"{ALIAS}/rollout/promote", {"override": False}, "rollouts.promote", "other@stable", "done"),
        ("DELETE", ALIAS, None, "aliases.delete", "other@stable", "done"),
        ("PATCH", f"{VERSION}/1", {"tool_parser": "none"}, "versions.parsers", "other:1", "done"),
        ("POST", f"{VERSION}/1/quantize", {}, "versions.quantize", "other:1", "begun"),
        ("POST", f"{VERSION}/1/evaluate", {}, "versions.evaluate", "other:1", "begun"),
        ("POST", VERSION, {"source": "a/b"}, "versions.import", "other", "begun"),
        ("DELETE", f"{VERSION}/2", None, "versions.delete", "other:2", "done"),
        ("POST", "/v1/deployments", {"model": "other:1"}, "deployments.load", "other:1", "begun"),
        ("POST", "/v2/repository/models/other:1/load", {}, "deployments.load", "other:1", "done"),
        ("POST", "/v2/repository/models/other:1/unload", {}, "deployments.unload", "other:1", "done"),
        ("POST", "/api/generate", ollama, "deployments.load", "demo:1", "done"),
        ("POST", "/api/embed", {**ollama, **unload}, "deployments.unload", "demo:1", "done"),
        ("POST", "/api/chat", {**ollama, "messages": []}, "deployments.load", "demo:1", "done"),
        ("DELETE", "/v1/deployments/demo:1", None, "deployments.unload", "demo:1", "begun"),
        ("DELETE", f"{session}/messages/{message}", None, "messages.delete", f"{ids['session']}/{message}", "done"),
        ("DELETE", session, None, "sessions.delete", ids["session"], "done"),
        (
            *("DELETE", f"{conversation}/items/{item}", None),
            *("messages.delete", f"{ids['conversation']}/{item}", "done"),
        ),
        ("DELETE", conversation, None, "sessions.delete", ids["conversation"], "done"),
        ("DELETE", f"/v1/knowledge/{ids['knowledge']}", None, "knowledge.delete", ids["knowledge"], "done"),
        ("DELETE", f"/v1/files/{ids['file']}", None, "files.delete", ids["file"], "done"),
        ("DELETE", f"/v1/responses/{ids['response']}", None, "answers.delete", ids["response"], "done"),
        ("DELETE", f"/v1/chat/completions/{ids['completion']}", None, "answers.delete", ids["completion"], "done"),
    ]
    for number, (method, path, body, *_) in enumerate(steps):
        await sent(world, method, path, body, headers={"X-Request-Id": f"step-{number}"})
    told = await rows(world)
    by_request = {(each["request_id"], each["outcome"]): each for each in told}
    for number, (_, path, _, action, subject, outcome) in enumerate(steps):
        row = by_request.get((f"step-{number}", outcome))
        assert row is not None and (row["action"], row["subject"]) == (action, subject), f"{path}: {row}"
        assert ((f"step-{number}", "begun") in by_request) == (outcome == "begun" or action in GIVING)
    instance = world.app.state.service.instances.id
    by_clients = [each for each in told if each["request_id"]]  # beside them, a job that was begun may have ended
    assert {(each["instance"], each["peer"]) for each in by_clients} == {(instance, "127.0.0.1")}
    assert {each["owner"] for each in told} == {told[0]["owner"]} and told[0]["owner"].startswith("key:")
    named = {operation.action for operation in OPERATIONS.values()}
    assert named - {each["action"] for each in told} == {"jobs.cancel"}
    created = next(each for each in told if each["action"] == "keys.create" and each["outcome"] == "done")
    assert (created["subject"], created["detail"]) == (key, {"name": "shop", "scopes": ["generate"]})


async def test_a_published_version_is_told_when_its_job_ends(world: World) -> None:
    job = (await sent(world, "POST", VERSION, {"source": "a/b", "evaluate": "none"}))["id"]
    await until(lambda: world.app.state.service.jobs.get(job).ended)
    await until(lambda: world.app.state.service.jobs.is_idle)
    begun, done = await rows(world, action="versions.import")
    assert (begun["outcome"], begun["subject"], begun["detail"]["job"]) == ("begun", "other", job)
    assert (done["outcome"], done["subject"], done["detail"]["job"]) == ("done", "demo:1", job)
    assert done["owner"] == begun["owner"]


async def test_a_key_is_named_and_what_it_may_not_do_is_counted(world: World) -> None:
    made = await sent(world, "POST", "/v1/keys", {"name": "가게", "scopes": ["models:write"]})
    bearer = {"Authorization": f"Bearer {made['key']}"}
    await sent(world, "PATCH", f"{VERSION}/1", {"tool_parser": "none"}, headers=bearer)
    for _ in range(5):
        assert (await world.client.delete("/v1/keys/key_any", headers=bearer)).status_code == 403
        await world.client.get("/v1/models", headers={"Authorization": "Bearer wrong"})
        assert (await world.client.delete(f"{VERSION}/77", headers=bearer)).status_code == 404
    for row in await rows(world, owner=made["id"]):
        assert row["name"] == "가게"
    [refused] = await rows(world, action="keys.delete")
    assert (refused["outcome"], refused["subject"], refused["detail"]) == ("refused", "", {"status": 403, "times": 5})
    [wrong] = await rows(world, action="sign-in")
    assert (wrong["peer"], wrong["owner"], wrong["detail"]) == ("127.0.0.1", "", {"status": 401, "times": 5})
    [absent] = await rows(world, action="versions.delete")
    assert (absent["subject"], absent["detail"]) == ("", {"status": 404, "times": 5})


@pytest.mark.parametrize("error", [Unavailable("away", retry_after=1), StorageFull("full")], ids=["away", "full"])
async def test_nobody_gets_access_without_a_row_and_other_rows_come_later(
    world: World, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    key = (await sent(world, "POST", "/v1/keys", {"name": "shop", "scopes": ["generate"]}))["id"]
    before = await sent(world, "GET", "/v1/keys")

    async def fails(self: Trail, entries: Any) -> Any:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Trail, "add", fails)
        for method, path, body in (
            ("POST", "/v1/keys", {"name": "x", "scopes": ["admin"]}),
            ("PATCH", f"/v1/keys/{key}", {"scopes": ["admin"]}),
            ("POST", f"/v1/keys/{key}/rotate", {}),
        ):
            refused = await world.client.request(method, path, json=body)
            assert refused.status_code == type(error).status, refused.text  # type: ignore[attr-defined]
        assert await sent(world, "GET", "/v1/keys") == before
        await sent(world, "DELETE", f"/v1/keys/{key}", headers={"X-Request-Id": "deletion"})
        await sent(world, "PUT", ALIAS, {"version": "1"}, headers={"X-Request-Id": "promotion"})
        assert "dosirak_audit_waiting_rows 5.0" in (await world.client.get("/metrics")).text
    told = await rows(world)
    late = [(each["action"], each["outcome"]) for each in told if each["request_id"] in ("deletion", "promotion")]
    assert late == [("keys.delete", "done"), ("aliases.promote", "done")]
    failed = [each["action"] for each in told if each["outcome"] == "failed"]
    assert failed == ["keys.create", "keys.change", "keys.rotate"]
    shown = (await world.client.get("/metrics")).text
    assert "dosirak_audit_waiting_rows 0.0" in shown and f"dosirak_audit_last_row {told[-1]['number']:.1f}" in shown


async def test_no_secret_and_no_text_is_in_any_row(world: World) -> None:
    word = "zqvwx"
    made = await sent(world, "POST", "/v1/keys", {"name": "shop", "scopes": ["generate"]})
    rotated = await sent(world, "POST", f"/v1/keys/{made['id']}/rotate")
    session = (await sent(world, "POST", "/v1/sessions", {"title": word, "system": word}))["id"]
    turn = {"session_id": session, "messages": [{"role": "user", "content": word}], "user": word}
    await sent(world, "POST", "/generate", turn)
    await sent(world, "PUT", ALIAS, {"version": "1", "reason": word})
    await sent(world, "POST", "/api/generate", {"model": "demo:1", "system": word})
    await sent(world, "DELETE", f"/v1/sessions/{session}")
    await sent(world, "POST", VERSION, {"source": f"./{word}"})
    secrets = [word, KEY, made["key"], rotated["key"], "sk-wrong-key"]
    for (method, path), operation in OPERATIONS.items():
        for secret in secrets:
            place = re.sub(r"\{[^}]*\}", secret.replace(" ", "%20"), path)
            answer = await world.client.request(method, place, json={"model": secret, secret: secret})
            assert answer.status_code >= 400, f"{method} {place}: {operation}"
    await world.client.get("/v1/models", headers={"Authorization": "Bearer sk-wrong-key"})
    await world.client.post("/ui/sign-in", data={"key": "sk-wrong-key"})
    assert len(await rows(world)) > 20
    with closing(sqlite3.connect(world.settings.data_dir / "sessions.db")) as connection:
        kept = json.dumps(connection.execute("SELECT * FROM audit").fetchall(), ensure_ascii=False)
    assert "aliases.promote" in kept
    for secret in (*secrets, *(each.split("-", 3)[3] for each in (made["key"], rotated["key"]))):
        assert secret not in kept


async def test_the_command_verifies_exports_and_cuts(world: World, tmp_path: Path) -> None:
    with capture_logs() as logged:
        for version in ("1", "2", "1"):
            await sent(world, "PUT", ALIAS, {"version": version})
        last = (await rows(world))[-1]
    log = tmp_path / "server.log"
    log.write_text("\n".join(["no JSON", *map(json.dumps, logged)]))
    await world.app.state.service.answers.conversations.stop()

    def run(*words: str, status: int = 0, group: str = "audit") -> str:
        environment = {"DOSIRAK_DATA_DIR": str(world.settings.data_dir), "DOSIRAK_ACTOR": "kim"}
        done = CliRunner().invoke(cli.app, [group, *words], env=environment)
        assert done.exit_code == status, done.output
        return done.output

    def by_hand(*statements: str) -> None:
        with closing(sqlite3.connect(world.settings.data_dir / "sessions.db")) as connection, connection:
            for statement in statements:
                connection.execute(statement)

    def commands() -> None:
        empty = tmp_path / "console.log"
        empty.write_text("14:08 POST /x 200\n")
        with pytest.raises(InvalidRequest, match="has no line of the audit"):
            CliRunner().invoke(cli.app, ["audit", "verify", "--log", str(empty)], catch_exceptions=False)
        with pytest.raises(NotFound, match=r"There is no database at .*: set DOSIRAK_DATA_DIR"):
            nowhere = {"DOSIRAK_DATA_DIR": str(tmp_path / "nowhere")}
            CliRunner().invoke(cli.app, ["audit", "verify"], env=nowhere, catch_exceptions=False)
        assert not (tmp_path / "nowhere").exists()
        told = json.loads(run("verify", "--json"))
        assert told["ok"] and told["last"] == {"number": last["number"], "hash": last["hash"]}
        copy = tmp_path / "copy.jsonl"
        copy.write_text(run("export"))
        assert json.loads(copy.read_text().splitlines()[-1]) == last
        assert "rows (3 compared with anchors), no problems" in run("verify", "--log", str(log))
        assert "no problems" in run("verify", "--log", str(copy), "--anchor", f"{last['number']}:{last['hash']}")
        run("promote", "other:3", "--alias", "stable", group="model")
        told = json.loads(run("export").splitlines()[-1])
        assert (told["action"], told["subject"], told["owner"]) == ("aliases.promote", "other@stable", "kim")
        assert "0 rows removed" in run("cut", "--older-than-days", "1")
        assert json.loads(run("verify", "--json"))["cut"] is None
        by_hand("DROP TRIGGER audit_unchanged", "UPDATE audit SET subject = 'other@production' WHERE number = 2")
        assert "Row 2 was changed" in run("verify", status=1)
        by_hand("DROP TRIGGER audit_kept", "DELETE FROM audit WHERE number > 1")
        by_hand("UPDATE audit_head SET number = 1, hash = (SELECT hash FROM audit)")
        assert "no problems" in run("verify"), "an end that was cut well"
        assert "Rows 2 to 3 are missing" in run("verify", "--log", str(log), status=1)
        assert "names row" in run("verify", "--anchor", f"99:{'0' * 64}", status=1)

    await asyncio.to_thread(commands)
