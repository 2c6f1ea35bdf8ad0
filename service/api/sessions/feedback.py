"""Votes on answers: their wire models, and the routes: one vote, lists, counts of versions, pairs for a trainer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, model_validator
from starlette.responses import Response, StreamingResponse

from service.api.deps import Limit, OwnerDep, Service, ServiceDep, Text
from service.api.http.bodies import json_body
from service.api.http.documented import Router, lines
from service.api.http.encoding import NDJSON, encode, json_response
from service.api.shared.answer_schemas import Page, Shown, Time
from service.api.shared.schemas import Wire, wrong
from service.errors import InvalidRequest
from service.storage.model_filters import model_filter
from service.storage.sessions import NewVote, Pair, Tally, Vote

if TYPE_CHECKING:
    from service.storage.sessions import Feedback


AnswerId = Annotated[str, Field(min_length=1, max_length=100)]


def _whole(value: Any) -> Any:
    """Returns None for what equals a whole number but is none, as true and 1.0."""
    return value if type(value) is int else None


class FeedbackBody(Wire):
    """`id` is the id of an answer in a session of the caller. `rating` 1 is good, -1 is bad. `preferred_over` is the id
    of another answer, the worse of the two."""

    id: AnswerId
    rating: Annotated[Literal[1, -1], BeforeValidator(_whole)]
    preferred_over: AnswerId | None = None
    comment: Annotated[str, Field(max_length=2000)] | None = None

    @model_validator(mode="after")
    def _is_one_opinion(self) -> FeedbackBody:
        if self.preferred_over is not None and self.rating < 0:
            text = "cannot be with rating -1: give the better answer as `id` with rating 1, or remove preferred_over"
            raise wrong("preferred_over", text)
        if self.preferred_over == self.id:
            raise wrong(
                "preferred_over", "must be another answer than `id`: send the id of the worse one, or remove it"
            )
        return self


class VoteShown(Shown):
    """`id` is the answer's. `created` is the last time that the vote was given."""

    id: str
    model: str | None
    version: str | None
    digest: str | None
    rating: Literal[1, -1]
    preferred_over: str | None
    comment: str | None
    session_id: str
    created: Time


class VotePage(Page[VoteShown]):
    """Newest first."""


class TallyShown(Shown):
    """`votes` is the sum of both counts. A vote with `preferred_over` counts for one answer and against the other."""

    model: str | None
    version: str | None
    preferred: int
    not_preferred: int
    votes: int


class Tallies(Shown):
    data: list[TallyShown]


router = Router(prefix="/v1/feedback", tags=["feedback"])
BODY: Final = json_body(FeedbackBody)
REPLACED: Final[dict[int | str, dict[str, Any]]] = {
    200: {"model": VoteShown, "description": "It replaced an earlier vote."}
}


@router.post("", response_model=VoteShown, status_code=201, responses=REPLACED)
async def vote(service: ServiceDep, owner: OwnerDep, body: FeedbackBody = BODY) -> Response:
    """Stores a vote on an answer in a session of the caller. A second vote on the same answer replaces the first, with
    status 200; so does a vote for the other of the same two answers."""
    stored, replaced = await (await _feedback(service)).vote(owner, NewVote(**body.model_dump()))
    return json_response(_shown(stored), 200 if replaced else 201)


@router.get("", response_model=VotePage)
async def list_votes(
    service: ServiceDep,
    owner: OwnerDep,
    model: Text | None = None,
    version: Text | None = None,
    cursor: Text | None = None,
    limit: Limit = 50,
) -> Response:
    """Lists the caller's votes, newest first; `model` is a name or name:version."""
    name, made_by = _filters(model, version)
    page = await (await _feedback(service)).all(owner, name=name, version=made_by, cursor=cursor, limit=limit)
    return json_response({"data": list(map(_shown, page.data)), "next_cursor": page.next_cursor})


@router.get("/summary", response_model=Tallies)
async def summary(service: ServiceDep, owner: OwnerDep, model: Text | None = None) -> Response:
    """Counts the caller's votes for and against each version; `model` is a name or name:version."""
    tallies = await (await _feedback(service)).summary(owner, *_filters(model, None))
    return json_response({"data": list(map(_counted, tallies))})


@router.get("/export", response_class=Response, responses=lines(NDJSON))
async def export(service: ServiceDep, owner: OwnerDep) -> Response:
    """Returns JSON lines, one for each vote with `preferred_over` whose two texts are there, newest first: `prompt`,
    `chosen` and `rejected` as lists of messages, as trainers read them."""
    feedback = await _feedback(service)
    found = await feedback.pair(owner)  # before the headers, so that a failure has its status
    return StreamingResponse(_lines(feedback, owner, found), media_type=NDJSON)


async def _lines(feedback: Feedback, owner: str, following: tuple[Pair, str] | None) -> AsyncIterator[bytes]:
    """Yields a line a pair, each read when it is its turn. A failure cuts the response: a shorter file would look
    whole."""
    while following is not None:
        pair, cursor = following
        yield encode(_trainable(pair)) + b"\n"
        following = await feedback.pair(owner, cursor)


def _trainable(pair: Pair) -> dict[str, Any]:
    prompt = [{"role": role, "content": content} for role, content in pair.prompt]
    texts = {name: [{"role": "assistant", "content": getattr(pair, name)}] for name in ("chosen", "rejected")}
    return {**asdict(pair), "prompt": prompt, **texts, "created": pair.created.isoformat()}


def _filters(model: str | None, version: str | None) -> tuple[str | None, str | None]:
    """Returns the name and the version that are asked for. Raises InvalidRequest."""
    if model is None:
        return None, version
    reference = model_filter(model)
    if None not in (version, reference.version) and version != reference.version:
        raise InvalidRequest(f"`version` is another one than {model}'s: send one of them", param="version")
    return reference.name, reference.version or version


def _shown(stored: Vote) -> dict[str, Any]:
    return asdict(stored) | {"created": stored.created.isoformat()}


def _counted(tally: Tally) -> dict[str, Any]:
    return asdict(tally) | {"votes": tally.preferred + tally.not_preferred}


async def _feedback(service: Service) -> Feedback:
    return (await service.store()).feedback
