"""Answers with grammars: always whole and right, and the same tokens and bitwise the same logprobs alone or in a crowd,
one token a step or several."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from service.engine.kv_cache.block_manager import BlockManager
from service.engine.process.core import EngineCore
from service.engine.protocol.config import DraftConfig
from service.engine.protocol.messages import FinishReason, Request, SamplingParams
from service.engine.scheduling.batching import BatchingPolicy
from service.engine.scheduling.scheduler import Scheduler
from service.engine.scheduling.speculation import Speculation
from service.engine.sequences.batch import Batch
from service.engine.sequences.sequence import Sequence
from service.text.grammars import Grammar
from tests.effort import usual
from tests.golden.test_draft_model import Always
from tests.golden.tiny import CONFIGS, MIN_PREFILL, Answer, Loaded, answer, save_random
from tests.grammars import FIELD, ORDER, TOKENS, decode, is_order, schema, vocabulary
from tests.kernels import use

SIZE = 320
STOPS = (300, 301)
"""Ids behind TOKENS, without a text of their own."""
MARK = "e"
"""Ends the reasoning of random models, which write no long mark; some of them write none."""
GRAMMARS: dict[str, tuple[str, Callable[[bytes], bool]]] = {
    "json": (schema(ORDER), is_order),
    "regex": (
        Grammar.of_regex("(가|na){2,9}[0-9]", FIELD).text,
        lambda text: bool(re.fullmatch(r"(가|na){2,9}[0-9]", text.decode())),
    ),
    "choice": (
        Grammar.of_choice(["menu", "men", "도시락"], FIELD).text,
        lambda text: text.decode() in ("menu", "men", "도시락"),
    ),
    "reasoning": (
        Grammar.of_regex("(가|me){1,3}[0-9]", FIELD).behind_reasoning("name", MARK, {}, is_open=True).text,
        lambda text: (
            MARK not in text.decode(errors="ignore")
            or bool(re.fullmatch(r"\n{0,2}(가|me){1,3}[0-9]", text.partition(MARK.encode())[2].decode()))
        ),
    ),
    "lark": (
        Grammar.of_lark('start: "<" name{1,6} ">"\nname: "name" | "count"', FIELD).text,
        lambda text: bool(re.fullmatch(rb"<(name|count){1,6}>", text)),
    ),
}
KINDS = [
    SamplingParams(max_tokens=150),
    SamplingParams(max_tokens=150, temperature=1.0, seed=7),
    SamplingParams(max_tokens=150, temperature=1.0, seed=3, logprobs=2),
    SamplingParams(
        max_tokens=150,
        temperature=0.9,
        top_p=0.9,
        top_k=30,
        repetition_penalty=1.2,
        seed=9,
        logprobs=0,
        prompt_logprobs=0,
    ),
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _save("llama", tmp_path_factory.mktemp("grammars") / "target", 5)


def _save(name: str, directory: Path, seed: int) -> Path:
    config = CONFIGS[name]
    return save_random(type(config)(**config.to_dict() | {"vocab_size": SIZE}), directory, seed)


def _load(directory: Path, precision: str = "fp32", **fields: DraftConfig) -> Loaded:
    loaded = Loaded.of(directory, precision, block_size=8, **fields)
    loaded.runner.grammars = vocabulary(SIZE)
    return loaded


def _requests() -> list[Request]:
    rng = random.Random(1)
    shared = tuple(rng.randrange(3, SIZE) for _ in range(24))
    given = [
        Request(
            f"{name}-{kind}",
            shared + tuple(rng.randrange(3, SIZE) for _ in range(rng.choice((1, 9, 30)))),
            replace(params, grammar=text, stop_token_ids=STOPS),
        )
        for name, (text, _) in GRAMMARS.items()
        for kind, params in enumerate(KINDS)
    ]
    plain = [Request(f"plain-{kind}", shared, replace(each, max_tokens=30)) for kind, each in enumerate(KINDS)]
    return given + plain


def _step_by_step(loaded: Loaded, requests: Iterable[Request]) -> dict[str, Answer]:
    """Each alone, one token a step."""
    found: dict[str, Answer] = {}
    for one in requests:
        found |= answer(loaded.core(caching=False), {0: [one]})
    return found


def _right(request: Request, found: Answer) -> bool:
    name = request.id.split("-")[0]
    ids = [id for id in found.token_ids if id not in STOPS]
    assert all(id < len(TOKENS) for id in ids)
    return GRAMMARS[name][1](decode(ids))


class Wrong(Speculation):
    """Drafts by n-gram that are mostly wrong, and often not allowed."""

    def proposals(self, decodes: Seq[Sequence]) -> Iterable[tuple[Sequence, tuple[int, ...]]]:
        for sequence in decodes:
            rng = random.Random(sequence.num_tokens)
            yield sequence, tuple(rng.randrange(SIZE) for _ in range(min(5, self.most(sequence))))


class Guessing(Scheduler):
    speculation_type = Wrong


def _core(loaded: Loaded, budget: int, blocks: int | None, kind: type[Scheduler]) -> EngineCore:
    manager = BlockManager(blocks or loaded.info.blocks_total, loaded.info.block_size)
    policy = Always if loaded.runner.draft_model else BatchingPolicy
    scheduler = kind(manager, policy(budget, MIN_PREFILL, 1e9), 16, 400, True, draft_model=loaded.runner.draft_model)
    return EngineCore(loaded.runner, scheduler, iter(range(10**9)).__next__)


def _check(plain: Loaded, other: Loaded, kind: type[Scheduler] = Scheduler) -> int:
    """Returns the certain tokens that shared a step."""
    requests, rng = _requests(), random.Random(2)
    alone = _step_by_step(plain, requests)
    assert any(MARK.encode() in decode(alone[each.id].token_ids) for each in requests if "reasoning" in each.id)
    certain = preempted = 0
    for count, blocks in [(1, None), (3, None), (9, None), (12, 30), (16, 26), (len(requests), None)]:
        members = rng.sample(requests, count)
        core = _core(other, rng.choice((40, 512)), blocks, kind)
        found = answer(core, {0: members[: count // 2 + 1], 5: members[count // 2 + 1 :]})
        for one in members:
            assert found[one.id].token_ids == alone[one.id].token_ids, one.id
            assert found[one.id].logprobs == alone[one.id].logprobs
            assert found[one.id].prompt_logprobs == alone[one.id].prompt_logprobs
            assert not one.params.grammar or _right(one, found[one.id]), decode(found[one.id].token_ids)
        core.scheduler.check_integrity()
        certain += core.stats.certain_tokens_total
        preempted += core.stats.preemptions_total
    assert preempted > 0
    return certain


@pytest.mark.parametrize("kernels", usual(["native", "torch"], "native"))
def test_alone_or_in_a_crowd(directory: Path, kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kernels == "torch":
        use("torch", monkeypatch)
    plain = _load(directory)
    assert _check(plain, plain) > 300


def test_in_bf16(directory: Path) -> None:
    plain = _load(directory, "bf16")
    assert _check(plain, plain) > 300


def test_wrong_drafts_change_nothing(directory: Path) -> None:
    plain = _load(directory)
    assert _check(plain, plain, Guessing) > 300


class Thrashing(Guessing):
    """Takes a running sequence's blocks in every second step."""

    steps = 0

    def schedule(self, now: float) -> Batch:
        self.steps += 1
        if self.running and self.steps % 2:
            self._preempt(self.running[self.steps % len(self.running)])
            self.num_preemptions += 1
        return super().schedule(now)


def test_drafts_under_heavy_preemption_change_nothing(directory: Path) -> None:
    """Sequences are thrown out again and again, within certain tokens as well."""
    plain = _load(directory)
    requests = [one for one in _requests() if one.params.grammar]
    calm, thrashing = (_core(plain, 512, None, kind) for kind in (Guessing, Thrashing))
    wanted, found = (answer(core, {0: requests}) for core in (calm, thrashing))
    assert calm.stats.preemptions_total == 0 < calm.stats.draft_tokens_total
    assert thrashing.stats.preemptions_total > 2 * len(requests) and thrashing.stats.certain_tokens_total > 100
    for one in requests:
        assert found[one.id].token_ids == wanted[one.id].token_ids
        assert found[one.id].logprobs == wanted[one.id].logprobs
        assert _right(one, found[one.id])
    thrashing.scheduler.check_integrity()


def test_a_draft_model_changes_nothing(directory: Path, tmp_path: Path) -> None:
    small = _save("qwen3", tmp_path / "draft", 3)
    drafting = _load(
        directory, draft=DraftConfig(model_dir=str(small), precision="fp32", dtype="fp32", max_model_len=512)
    )
    assert _check(_load(directory), drafting) > 300


AGAINST: dict[str, dict[str, Any]] = {
    "the only tokens": {"logit_bias": tuple((id, -100.0) for id in range(len(TOKENS)))},
    "tokens that are not allowed": {"logit_bias": tuple((id, 100.0) for id in (ord("~"), ord("\n"), SIZE - 1))},
    "the end": {"logit_bias": tuple((id, 100.0) for id in STOPS)},
    "no end": {"logit_bias": tuple((id, -100.0) for id in STOPS)},
    "repetition": {"repetition_penalty": 2.0, "frequency_penalty": 2.0, "presence_penalty": 2.0},
    "one token": {"top_k": 1, "temperature": 2.0},
    "the likeliest": {"top_p": 1e-6, "temperature": 2.0},
    "a high floor": {"min_p": 1.0, "typical_p": 0.01, "temperature": 2.0},
}
"""By what they work against: parameters of sampling."""


@pytest.mark.parametrize("name", AGAINST)
def test_no_parameter_of_sampling_breaks_a_grammar(directory: Path, name: str) -> None:
    plain = _load(directory)
    params: dict[str, Any] = {"temperature": 1.0, "seed": 5, **AGAINST[name]}
    asked = [replace(one, params=replace(one.params, **params)) for one in _requests() if one.id.endswith(("-0", "-3"))]
    found = answer(_core(plain, 512, None, Scheduler), {0: asked})
    alone = _step_by_step(plain, asked)
    assert {id: each.token_ids for id, each in found.items()} == {id: each.token_ids for id, each in alone.items()}
    assert all(_right(one, found[one.id]) for one in asked if one.params.grammar)


def test_an_answer_that_goes_on_in_another_engine(directory: Path) -> None:
    """From every place: what was given out is followed again, also from within the certain tokens."""
    plain = _load(directory)
    for one in _requests()[:4]:
        whole = _step_by_step(plain, [one])[one.id]
        for given in range(1, len(whole.token_ids)):
            core = _core(plain, 512, None, Scheduler)
            rest = answer(core, {0: [replace(one, emitted=whole.token_ids[:given])]})[one.id]
            assert whole.token_ids[:given] + rest.token_ids == whole.token_ids
            assert whole.logprobs[given:] == rest.logprobs


def test_a_limit_of_tokens_ends_an_answer_anywhere(directory: Path) -> None:
    plain = _load(directory)
    one = _requests()[0]
    whole = _step_by_step(plain, [one])[one.id].token_ids
    for most in range(1, len(whole) + 1):
        core = _core(plain, 512, None, Scheduler)
        core.add(replace(one, params=replace(one.params, max_tokens=most)))
        outputs = [output for _ in range(200) if core.has_work for output in core.step()]
        assert tuple(id for output in outputs for id in output.token_ids) == whole[:most]
        assert outputs[-1].finish_reason is (FinishReason.STOP if most == len(whole) else FinishReason.LENGTH)


def test_a_grammar_that_becomes_too_complex_ends_its_own_answer(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = _load(directory)
    core = _core(plain, 512, None, Scheduler)
    broken, right = _requests()[0], _requests()[1]
    core.add(broken)
    core.add(right)
    for _ in range(4):
        core.step()
    sequence = next(each for each in core.scheduler.running if each.request.id == broken.id)
    assert sequence.constraint is not None
    monkeypatch.setattr(type(sequence.constraint), "is_broken", property(lambda self: self is sequence.constraint))
    outputs = [output for _ in range(200) if core.has_work for output in core.step()]
    ends = {output.request_id: output.finish_reason for output in outputs if output.finish_reason}
    assert ends == {broken.id: FinishReason.ERROR, right.id: FinishReason.STOP}


def test_rows_without_numbers_end_their_own_answer(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mask makes no token of NaN."""
    plain = _load(directory)
    run = plain.runner.forward.__call__
    monkeypatch.setattr(type(plain.runner), "_logits", lambda self, step: run(step) * float("nan"))
    one = _requests()[4]
    core = _core(plain, 512, None, Scheduler)
    core.add(one)
    outputs = [output for _ in range(50) if core.has_work for output in core.step()]
    assert outputs[-1].finish_reason is FinishReason.ERROR


def test_a_request_that_cannot_have_a_grammar_ends_alone(directory: Path) -> None:
    loaded = Loaded.of(directory, "fp32", block_size=8)
    core = loaded.core()
    core.add(_requests()[0])
    assert [output.finish_reason for output in core.step()] == [FinishReason.ERROR]
    loaded.runner.grammars = vocabulary(SIZE)
    core = loaded.core()
    core.add(replace(_requests()[0], params=SamplingParams(max_tokens=4, grammar="start: nothing")))
    core.add(replace(_requests()[1], params=SamplingParams(max_tokens=4, min_tokens=2, grammar='start: "a"')))
    assert [output.finish_reason for output in core.step()] == [FinishReason.ERROR] * 2
