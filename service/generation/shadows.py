"""Shadows makes a candidate answer requests again, and compares its answers with the answers that clients got; no
client receives the candidate's. One shadow runs at a time, only while no main request waits: a main request that starts
to wait drops the shadow."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

import structlog

from models.repository.agreement import agreement
from models.repository.rollouts import Rollout
from service.deployments.deployment import Deployment, DeploymentState
from service.deployments.deployments import Deployments
from service.engine.protocol.messages import Request as EngineRequest
from service.errors import DosirakError
from service.generation.answer import Answer
from service.tasks import BackgroundTasks

log = structlog.get_logger(__name__)

SHADOW: Final = "shadow"
MOST_WAITING: Final = 16
POLL_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class _Offered:
    """A copy of a request for the candidate, with the main answer to compare with."""

    rollout: Rollout
    engine_request: EngineRequest
    base: Deployment
    token_ids: tuple[int, ...]
    seconds: float


class Shadows:
    """The event loop owns Shadows. The oldest offers are dropped when too many wait."""

    def __init__(self, deployments: Deployments, tasks: BackgroundTasks) -> None:
        self._deployments = deployments
        self._tasks = tasks
        self._waiting: deque[_Offered] = deque(maxlen=MOST_WAITING)
        self._task: asyncio.Task[None] | None = None

    def offer(self, answer: Answer, rollout: Rollout) -> None:
        """Queues a finished answer, whose first sequence is later compared with the candidate's. Never waits."""
        sequence, request = answer.sequences[0], answer.request
        token_ids = tuple(sequence.sampled)
        if not token_ids or answer.last_at is None:
            return
        params = request.params(answer.max_new_tokens, sequence.seed, answer.tokenizer.stop_token_ids)
        engine_request = EngineRequest(
            f"shadow-{request.id}", answer.prompt.token_ids, params, cache_salt=request.prefix_salt
        )
        seconds = answer.last_at - request.arrival
        self._waiting.append(_Offered(rollout, engine_request, answer.deployment, token_ids, seconds))
        if self._task is None or self._task.done():
            self._task = self._tasks.run(SHADOW, self._work)

    async def _work(self) -> None:
        while self._waiting:
            if any(each.in_flight for each in self._deployments.all()):
                await asyncio.sleep(POLL_SECONDS)
                continue
            offered = self._waiting.popleft()
            try:
                await self._shadow(offered)
            except DosirakError as error:
                log.info("shadow_failed", model=offered.rollout.reference, reason=error.message)

    async def _shadow(self, offered: _Offered) -> None:
        rollout = offered.rollout
        candidate = next((each for each in self._deployments.all() if _is_candidate(each, rollout)), None)
        if candidate is None or candidate.manifest.vocab_size != offered.base.manifest.vocab_size:
            return
        loop = asyncio.get_running_loop()
        started = loop.time()
        token_ids: list[int] = []
        async with aclosing(candidate.generate(offered.engine_request)) as outputs:
            async for output in outputs:
                token_ids += output.token_ids
                if any(each.in_flight > (each is candidate) for each in self._deployments.all()):
                    return  # a main request waits
        seconds = loop.time() - started
        lengths = len(token_ids) / len(offered.token_ids)
        self._deployments.rollouts.compare(
            rollout, agreement(offered.token_ids, token_ids), lengths, seconds / max(offered.seconds, 1e-6)
        )


def _is_candidate(deployment: Deployment, rollout: Rollout) -> bool:
    return deployment.manifest.reference == rollout.reference and deployment.state is DeploymentState.READY
