"""Every field of every body changes the answer as specified, or is refused by name. The fields are those of the wire
models, so a new one without a case in `tests/api/fields` fails here."""

from __future__ import annotations

import dataclasses
import json
import socket
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from models.repository.repository import Repository
from service.api.openapi.operation_facts import EXAMPLES
from service.deployments.deployment import Deployment
from service.deployments.deployments import Deployments
from service.evaluation.jobs.job import Job
from service.evaluation.jobs.jobs import Jobs
from service.observability.profiles.profile import Profile
from service.observability.profiles.profiles import Profiles
from tests.api.conftest import KEY
from tests.api.fields import anthropic, batches, embeddings, kserve, native, ollama, openai, others, responses
from tests.api.fields.cases import ANYTHING, LATER, UNREAD, Case, Table, body_of, fields, neutral, place, shown
from tests.api.fields.stage import TEMPLATE, Stage, staged
from tests.conformance import documented
from tests.fake_service import publish, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")
TABLES: tuple[Table, ...] = tuple(
    table
    for module in (native, openai, responses, embeddings, ollama, kserve, anthropic, others, batches)
    for table in module.TABLES
)
VOLATILE = ("seconds", "request_id", "trace_id", "timings", "content-length")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    directory: Path = tmp_path_factory.mktemp("fields")
    for name in ("demo", "demo", "other", "other", "other"):
        publish(Repository(directory), name, chat_template=TEMPLATE)
    async with serving(directory, worker="tests.fake_job", protected_aliases="stable,beta", admin_key=KEY) as world:
        world.client.headers["Authorization"] = f"Bearer {KEY}"
        yield await staged(world)


@pytest.fixture(autouse=True)
def orders(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What jobs and loads were asked for; no process runs them, and no profile is made."""
    given: list[dict[str, Any]] = []
    load = Deployments.begin_loading

    def submit(self: Jobs, kind: Any, arguments: dict[str, Any]) -> Job:
        given.append({"kind": kind, **arguments})
        return Job.new(kind, arguments)

    async def load_one(self: Deployments, reference: str | None, *others: Any) -> Deployment:
        names = ("replicas", "draft", "engine", "engine_options", "max_model_len")
        given.append({"model": reference, **dict(zip(names, others, strict=False))})
        return await load(self, reference)

    async def begin(self: Profiles, reference: str | None, steps: int, kind: Any) -> Profile:
        return Profile.new(self._deployments.resolve(reference), steps, kind)

    monkeypatch.setattr(Profiles, "begin", begin)
    monkeypatch.setattr(Jobs, "submit", submit)
    monkeypatch.setattr(Deployments, "begin_loading", load_one)
    return given


def test_no_field_is_forgotten() -> None:
    assert {f"{table.path} {table.model.__name__}": missing for table in TABLES if (missing := table.forgotten())} == {}


def test_no_body_is_forgotten() -> None:
    bodies = [(route.openapi_extra or {}).get("requestBody", {}).get("content", {}) for route in documented()]
    told = [body["application/json"] for body in bodies if "application/json" in body]
    named = {each["schema"]["$ref"].rsplit("/", 1)[1] for each in told}
    assert named == {table.model.__name__ for table in TABLES}


def test_every_case_is_about_a_field() -> None:
    for table in TABLES:
        known = {name for name, _ in fields(table.model)}
        assert [case.field for case in table.cases if case.name not in known] == []


def named(table: Table) -> str:
    return f"{table.path}:{table.model.__name__}"


@pytest.mark.parametrize("table", TABLES, ids=named)
async def test_every_field_acts_or_is_refused_by_name(stage: Stage, orders: list[dict[str, Any]], table: Table) -> None:
    wrong = []
    for case in table.all():
        try:
            await acts_or_is_refused(stage, orders, table, case)
        except AssertionError as error:
            wrong.append(f"{case.field}={str(case.value)[:40]}: {error}")
    assert not wrong, "\n".join(wrong)


async def acts_or_is_refused(stage: Stage, orders: list[dict[str, Any]], table: Table, case: Case) -> None:
    if case.is_refused:
        await refused(stage, orders, table, case)
        return
    if case.wrong is not ANYTHING:
        assert (await observe(stage, orders, table, case))["status"] < 300
        if case.wrong is not UNREAD:
            await refused(stage, orders, table, dataclasses.replace(case, value=case.wrong))
        return
    first = await observe(stage, orders, table, case, with_it=False)
    observed = await observe(stage, orders, table, case)
    assert case.at == "status" or observed["status"] < 300, observed["answer"]
    if case.at:
        assert shown(case, place(observed, case.at)), place(observed, case.at)
        assert not shown(case, place(first, case.at)), "it shows without the field as well"
    else:
        assert case.shows is ANYTHING
        again = await observe(stage, orders, table, case, with_it=False)
        changed = _differences(first, observed) - _differences(first, again)
        assert changed, "nothing changes"


@pytest.mark.parametrize("table", TABLES, ids=named)
async def test_what_asks_for_nothing_is_accepted(stage: Stage, orders: list[dict[str, Any]], table: Table) -> None:
    for case in table.all():
        owner = dict(fields(table.model)).get(case.name)
        if case.value is not LATER or owner is None:
            continue
        for nothing in neutral(owner, case.name.rsplit(".", 1)[-1]):
            asked = dataclasses.replace(case, value=nothing)
            observed = await observe(stage, orders, table, asked)
            assert observed["status"] < 300, (case.field, nothing, observed["answer"])


@pytest.fixture
def asked_for() -> Iterator[list[str]]:
    """Every address that this process looks up or connects to while a test runs; hooks of audit stay for ever."""
    ADDRESSES.clear()
    yield ADDRESSES
    ADDRESSES.clear()


ADDRESSES: list[str] = []
ELSEWHERE = "http://169.254.169.254/latest/meta-data"
PARTS = (
    {"type": "image_url", "image_url": {"url": ELSEWHERE}},
    {"type": "input_image", "image_url": ELSEWHERE},
    {"type": "input_file", "file_url": ELSEWHERE},
    {"type": "file", "file": {"file_data": ELSEWHERE}},
    {"type": "image", "source": {"type": "url", "url": ELSEWHERE}},
    {"type": "document", "source": {"type": "url", "url": ELSEWHERE}},
)
"""As OpenAI's two interfaces and Anthropic's have them."""


def _note_address(event: str, arguments: tuple[Any, ...]) -> None:
    is_local = event == "socket.connect" and isinstance(arguments[1], str | bytes)  # a Unix socket
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname") and not is_local:
        ADDRESSES.append(f"{event} {arguments[-1 if event == 'socket.connect' else 0]!r}")


sys.addaudithook(_note_address)


async def test_an_address_that_is_asked_for_is_noted(asked_for: list[str]) -> None:
    with suppress(OSError), socket.socket() as tried:
        tried.setblocking(False)
        tried.connect(("127.0.0.1", 9))
    assert asked_for == ["socket.connect ('127.0.0.1', 9)"]


@pytest.mark.parametrize("table", TABLES, ids=named)
async def test_no_field_leads_to_another_address(
    stage: Stage, orders: list[dict[str, Any]], table: Table, asked_for: list[str]
) -> None:
    """An address as the value of every field, and as every kind of part: none is looked up, none fails the server."""
    names = {name for name, _ in fields(table.model)} | {case.name for case in table.cases}
    values: list[tuple[str, Any]] = [(name, ELSEWHERE) for name in names]
    values += [(name, [part]) for name in names if name.rpartition(".")[2] in ("content", "input") for part in PARTS]
    for name, value in sorted(values, key=str):
        case = Case(name.replace("[]", "[0]"), value)
        observed = await observe(stage, orders, table, case)
        assert observed["status"] < 500, (name, observed["answer"])
        assert not asked_for, (name, asked_for)


@pytest.mark.parametrize("table", TABLES, ids=named)
async def test_an_unknown_field_is_ignored_at_every_place(
    stage: Stage, orders: list[dict[str, Any]], table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the fields of a body, and beside those of each object in it, under DOSIRAK_UNKNOWN_FIELDS=ignore."""
    monkeypatch.setitem(stage.world.settings.__dict__, "unknown_fields", "ignore")
    models = {name.rpartition(".")[0] for name, _ in fields(table.model)}
    places = {"": Case("", None)}
    for case in table.all():
        if not case.is_refused and case.value is not None and case.wrong is ANYTHING and case.at != "status":
            places.setdefault(case.field.rpartition(".")[0], case)
    wrong = []
    for above, case in places.items():
        if dataclasses.replace(case, field=above).name not in models:
            continue
        body = body_of(table, case) if above else table.body
        unknown = Case(f"{above}.zzz".lstrip("."), 1, beside=case.beside)
        observed = await observe(stage, orders, dataclasses.replace(table, body=body), unknown)
        told = observed["headers"].get("x-ignored-fields", "")
        if observed["status"] >= 300 or unknown.field not in told.split(", "):
            wrong.append(f"{unknown.field}: {told} {str(observed['answer'])[:300]}")
    assert not wrong, "\n".join(wrong)


async def refused(stage: Stage, orders: list[dict[str, Any]], table: Table, case: Case) -> None:
    observed = await observe(stage, orders, table, case)
    assert observed["status"] in (400, 422), observed
    expected = f"`{case.field.rsplit('.', 1)[-1]}`" if table.is_flat else case.field
    assert expected in _named_in(observed["answer"]), observed["answer"]


@pytest.mark.parametrize("table", TABLES, ids=named)
async def test_the_documents_example_is_accepted(stage: Stage, table: Table) -> None:
    """Ids that an example makes up are those of things that are there."""
    example = EXAMPLES[table.model.__name__]
    path = await stage.filled(table.path)
    there = {name: value for name, value in table.body.items() if "<" in str(value)}
    answer = await stage.world.client.request(table.method, path, json=await stage.filled({**example, **there}))
    assert answer.is_success, answer.text


async def observe(
    stage: Stage, orders: list[dict[str, Any]], table: Table, case: Case, with_it: bool = True
) -> dict[str, Any]:
    """What one request leads to: its answer, the engine's request, the log's line, jobs."""
    world, made, ordered = stage.world, len(stage.requests), len(orders)
    path = await stage.filled(table.path)
    body = await stage.filled(body_of(table, case, with_it))
    with capture_logs() as lines:
        answer = await world.client.request(table.method, path, json=body)
    requests = stage.requests[made:]
    read = await world.client.get(f"{path}/{answer.json()['id']}") if body.get("store") and answer.is_success else None
    logged = [line for line in lines if line["event"] == "request"]
    return {
        "status": answer.status_code,
        "answer": _read(answer.text),
        "headers": {name: value for name, value in answer.headers.items() if name != "x-request-id" or "id" in body},
        "engine": _engine(stage, requests[-1]) if requests else {},
        "engines": len(requests),
        "log": {name: value for name, value in (logged[-1] if logged else {}).items() if name not in VOLATILE},
        "id": answer.headers.get("x-request-id"),
        "read": read and read.status_code,
        "orders": orders[ordered:],
        "kept": {each.manifest.reference: each.keep_alive for each in world.deployments.all()},
    }


def _engine(stage: Stage, request: Any) -> dict[str, Any]:
    params = {each.name: getattr(request.params, each.name) for each in dataclasses.fields(request.params)}
    told = {"priority": request.priority, "has_deadline": request.deadline is not None, "ids": request.token_ids}
    told["salt"] = request.cache_salt
    return {**params, **told, "prompt": stage.world.tokenizer.decode(request.token_ids, skip_special_tokens=False)}


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith(("data: ", "{"))]
    try:
        return [json.loads(line) for line in lines if line.startswith("{")]
    except ValueError:
        return text


def _named_in(answer: Any) -> str:
    """The name that an error gives: OpenAI's `param`, else what its sentence quotes."""
    error = answer["error"]
    if isinstance(error, Mapping):
        return f"{error.get('param')} {error['message'] if error.get('param') is None else ''}"
    return str(error)


def _differences(one: Any, other: Any, at: str = "") -> set[str]:
    """The places at which two observations differ."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return {
            each
            for key in (one.keys() | other.keys()).difference(VOLATILE)
            for each in _differences(one.get(key), other.get(key), f"{at}.{key}")
        }
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return {
            each for n, pair in enumerate(zip(one, other, strict=True)) for each in _differences(*pair, f"{at}.{n}")
        }
    return set() if one == other else {at}
