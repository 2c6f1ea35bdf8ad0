"""Steps with exact batches, orders and reasons."""

from __future__ import annotations

from typing import Any

import pytest

from service.engine.kv_cache.block_manager import BlockManager
from service.engine.protocol.messages import FinishReason, StepOutput, TokenLogprobs
from service.engine.scheduling.batching import Backlog, BatchingPolicy
from service.engine.scheduling.cost import StepWork
from service.engine.scheduling.scheduler import Scheduler
from service.engine.sequences.batch import Batch, SampledToken, Scheduled
from service.engine.sequences.sequence import Sequence, SequenceStatus
from tests.fakes import make_request, make_scheduler


def planned(batch: Batch) -> list[tuple[str, int]]:
    return [(item.sequence.request.id, item.num_tokens) for item in batch.scheduled]


def step(
    scheduler: Scheduler, now: float = 0.0, token: int | None = 7
) -> tuple[list[tuple[str, int]], list[StepOutput]]:
    """One step in which every sequence that samples gets `token`."""
    batch = scheduler.schedule(now)
    plan = planned(batch)
    outputs = scheduler.update(batch, [SampledToken(token) if item.samples else None for item in batch.scheduled], now)
    scheduler.check_integrity()
    return plan, outputs


def names(outputs: list[StepOutput]) -> list[tuple[str, FinishReason | None]]:
    return [(output.request_id, output.finish_reason) for output in outputs]


def test_decodes_come_first_then_chunks_then_admissions() -> None:
    scheduler = make_scheduler(num_blocks=64, max_num_seqs=4, max_num_batched_tokens=16)
    scheduler.add(make_request("a", range(6)))
    scheduler.add(make_request("b", range(10, 50), arrival=1))
    scheduler.add(make_request("c", range(60, 64), arrival=2))
    assert step(scheduler)[0] == [("a", 6), ("b", 10)]
    assert step(scheduler)[0] == [("a", 1), ("b", 15)]
    assert step(scheduler)[0] == [("a", 1), ("b", 15)]
    assert step(scheduler)[0] == [("a", 1), ("b", 1), ("c", 4)]
    assert step(scheduler)[0] == [("b", 1), ("c", 1)], "a has had its four tokens"


def measured_scheduler() -> Scheduler:
    """Of a machine on which a step takes 10 ms, and 1 ms more for each row."""
    scheduler = make_scheduler(num_blocks=256)
    scheduler.policy.inter_token_latency_target = 0.1
    for n in range(400):
        tokens = 1 + 7 * n % 30
        scheduler.policy.observe(StepWork(tokens), 0.01 + 0.001 * tokens)
    return scheduler


@pytest.mark.parametrize(("is_streamed", "rows"), [(True, 18), (False, 63)])
def test_prompts_take_less_of_a_step_beside_one_who_reads_along(is_streamed: bool, rows: int) -> None:
    """30 ms are planned for at most; where nobody reads along, two prompts take what one decode leaves of 64 rows."""
    scheduler = measured_scheduler()
    scheduler.policy.inter_token_latency_target = 0.03
    scheduler.add(make_request("a", [1], max_tokens=9, is_streamed=is_streamed))
    step(scheduler)
    scheduler.add(make_request("b", range(10, 150), arrival=1))
    scheduler.add(make_request("c", range(200, 350), arrival=2))
    assert step(scheduler)[0] == [("a", 1), ("b", rows)]


def test_nobody_gets_a_scrap_of_the_budget() -> None:
    scheduler = make_scheduler(num_blocks=64, max_num_seqs=4, max_num_batched_tokens=16)
    scheduler.add(make_request("a", range(14)))
    scheduler.add(make_request("b", range(10, 50), arrival=1))
    scheduler.add(make_request("c", range(60, 62), arrival=2))
    assert step(scheduler)[0] == [("a", 14)], "2 are left, 4 are the least of b, and c is behind b"


def test_priority_then_arrival() -> None:
    scheduler = make_scheduler(max_num_seqs=8)
    scheduler.add(make_request("late", [1], arrival=3))
    scheduler.add(make_request("early", [2], arrival=1))
    scheduler.add(make_request("urgent", [3], arrival=5, priority=9))
    scheduler.add(make_request("second early", [4], arrival=1))
    assert [name for name, _ in step(scheduler)[0]] == ["urgent", "early", "second early", "late"]


def test_max_num_seqs_holds_and_the_next_enters_when_one_leaves() -> None:
    scheduler = make_scheduler(max_num_seqs=2)
    for index, id in enumerate("abc"):
        scheduler.add(make_request(id, [index + 1], max_tokens=1 + index, arrival=index))
    plan, outputs = step(scheduler)
    assert plan == [("a", 1), ("b", 1)]
    assert names(outputs) == [("a", FinishReason.LENGTH), ("b", None)]
    assert step(scheduler)[0] == [("b", 1), ("c", 1)]


def test_the_youngest_is_preempted_keeps_its_tokens_and_comes_back_first() -> None:
    scheduler = make_scheduler(num_blocks=5, prefix_caching=False)
    scheduler.add(make_request("a", range(8), max_tokens=9))
    scheduler.add(make_request("b", range(20, 28), max_tokens=9, arrival=1))
    step(scheduler)
    scheduler.add(make_request("c", [5], arrival=2))
    plan, outputs = step(scheduler)  # each needs a third block, one is there: a takes it
    assert plan == [("a", 1)]
    b = scheduler.waiting[0]
    assert (b.request.id, b.status, b.block_table, b.num_tokens) == ("b", SequenceStatus.PREEMPTED, [], 9)
    assert [s.request.id for s in scheduler.waiting] == ["b", "c"]
    for _ in range(7):
        plan, outputs = step(scheduler)
        assert plan == [("a", 1)], "b needs three blocks and one to spare, two are there; c waits behind it"
    assert names(outputs) == [("a", FinishReason.LENGTH)]
    plan, outputs = step(scheduler)
    assert plan == [("b", 9), ("c", 1)]
    assert (outputs[0].num_preemptions, scheduler.num_preemptions) == (1, 1)
    assert outputs[0].queue_seconds is None, "its first token came before"


def test_an_admission_leaves_a_block_to_each_that_runs() -> None:
    scheduler = make_scheduler(num_blocks=6)
    scheduler.add(make_request("a", range(8), max_tokens=5))
    step(scheduler)
    scheduler.add(make_request("b", range(20, 32), max_tokens=1, arrival=1))
    assert [step(scheduler)[0] for _ in range(5)] == [[("a", 1)]] * 4 + [[("b", 12)]]
    assert scheduler.num_preemptions == 0


def test_a_preempted_sequence_finds_its_own_blocks_again() -> None:
    scheduler = make_scheduler(num_blocks=5)
    scheduler.add(make_request("a", range(8), max_tokens=2))
    scheduler.add(make_request("b", range(20, 28), max_tokens=4, arrival=1))
    step(scheduler)
    assert step(scheduler)[0] == [("a", 1)]
    assert step(scheduler)[0] == [("b", 1)], "eight of its nine tokens were still there"
    assert scheduler.prefill.num_hit_tokens == 8


def test_lower_priority_is_preempted_before_younger() -> None:
    scheduler = make_scheduler(num_blocks=5, prefix_caching=False)
    scheduler.add(make_request("old and low", range(8), max_tokens=9, priority=0))
    scheduler.add(make_request("young and high", range(20, 28), max_tokens=9, priority=1, arrival=1))
    step(scheduler)
    assert step(scheduler)[0] == [("young and high", 1)]


def test_a_prefix_is_shared_and_counted() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_request("a", range(10), max_tokens=1))
    step(scheduler)
    scheduler.add(make_request("b", range(10), max_tokens=1))
    plan, outputs = step(scheduler)
    assert plan == [("b", 2)]
    assert outputs[0].num_cached_tokens == 8
    assert (scheduler.prefill.num_queried_tokens, scheduler.prefill.num_hit_tokens) == (20, 8)
    assert scheduler.prefill.num_prefill_tokens == 12


def test_prompt_logprobs_switch_prefix_reuse_off() -> None:
    scheduler = make_scheduler()
    for id in "ab":
        scheduler.add(make_request(id, range(10), max_tokens=1, prompt_logprobs=0))
        plan, outputs = step(scheduler)
        assert (plan, outputs[0].num_cached_tokens) == ([(id, 10)], 0)


def test_prompt_logprobs_are_given_out_once_over_a_preemption() -> None:
    scheduler = make_scheduler(num_blocks=3, max_num_seqs=4, max_num_batched_tokens=8)
    scheduler.add(make_request("a", range(12), max_tokens=0, prompt_logprobs=0))
    batch = scheduler.schedule(0)
    assert planned(batch) == [("a", 8)]
    first = tuple(TokenLogprobs(-float(p)) for p in range(1, 8))
    assert scheduler.update(batch, [SampledToken(None, prompt_logprobs=first)], 0)[0].prompt_logprobs == first
    scheduler._preempt(scheduler.running[0])
    batch = scheduler.schedule(0)
    assert scheduler.update(batch, [SampledToken(None, prompt_logprobs=first)], 0) == []
    rest = tuple(TokenLogprobs(-float(p)) for p in range(8, 12))
    outputs = scheduler.update(scheduler.schedule(0), [SampledToken(3, prompt_logprobs=rest)], 0)
    assert outputs[0].prompt_logprobs == rest
    assert (outputs[0].finish_reason, outputs[0].token_ids) == (FinishReason.LENGTH, ()), "max_tokens 0 samples nothing"


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"max_tokens": 3, "stop_token_ids": (7,)}, [FinishReason.STOP]),
        ({"max_tokens": 3, "stop_token_ids": (7,), "min_tokens": 2}, [None, None, FinishReason.STOP]),
        ({"max_tokens": 3, "stop_token_ids": (8,)}, [None, None, FinishReason.LENGTH]),
        ({"max_tokens": 1}, [FinishReason.LENGTH]),
    ],
)
def test_how_a_sequence_ends(params: dict[str, object], expected: list[FinishReason | None]) -> None:
    scheduler = make_scheduler()
    scheduler.add(make_request("a", [1, 2], **params))
    reasons = [output.finish_reason for _ in expected for output in step(scheduler)[1]]
    assert reasons == expected
    assert not scheduler.has_work
    assert scheduler.blocks.num_available == 16


def test_the_window_and_the_pool_end_a_sequence() -> None:
    scheduler = make_scheduler(num_blocks=2)  # 8 tokens
    scheduler.add(make_request("a", range(6), max_tokens=100))
    assert names(step(scheduler)[1] + step(scheduler)[1]) == [("a", None), ("a", FinishReason.LENGTH)]


@pytest.mark.parametrize(
    ("num_tokens", "max_tokens", "fits"), [(0, 1, False), (7, 1, True), (8, 1, False), (8, 0, True), (9, 0, False)]
)
def test_what_cannot_fit_is_refused(num_tokens: int, max_tokens: int, fits: bool) -> None:
    scheduler = make_scheduler(num_blocks=2)
    request = make_request("a", range(num_tokens), max_tokens=max_tokens)
    if fits:
        scheduler.add(request)
        assert step(scheduler)[0] == [("a", num_tokens)]
    else:
        with pytest.raises(ValueError, match="prompt of"):
            scheduler.add(request)


def test_an_id_lives_once() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_request("a"))
    with pytest.raises(ValueError, match="alive already"):
        scheduler.add(make_request("a"))


def test_deadlines_end_the_waiting_and_the_running() -> None:
    scheduler = make_scheduler(max_num_seqs=1)
    scheduler.add(make_request("running", deadline=10.0, max_tokens=50))
    scheduler.add(make_request("waiting", deadline=9.0, arrival=1))
    assert names(step(scheduler, now=8.9)[1]) == [("running", None)]
    assert names(step(scheduler, now=9.0)[1]) == [("waiting", FinishReason.DEADLINE), ("running", None)]
    plan, outputs = step(scheduler, now=10.0)
    assert (plan, names(outputs)) == ([], [("running", FinishReason.DEADLINE)])
    assert outputs[0].batch_size_mean == 1.0
    assert not scheduler.has_work


def test_a_deadline_ends_nobody_but_the_request_that_had_it() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_request("a", deadline=5.0, max_tokens=50))
    step(scheduler, now=1.0)
    scheduler.abort(["a"])
    scheduler.add(make_request("a", deadline=9.0, max_tokens=50))
    assert names(step(scheduler, now=6.0)[1]) == [("a", FinishReason.ABORT), ("a", None)]
    assert names(step(scheduler, now=9.0)[1]) == [("a", FinishReason.DEADLINE)]


def test_the_deadlines_of_what_has_ended_are_not_kept() -> None:
    """A deadline may be a day behind its answer."""
    scheduler = make_scheduler()
    scheduler.add(make_request("last", deadline=5e3, max_tokens=50))
    for number in range(3000):
        scheduler.add(make_request(f"{number}", deadline=1e9))
        scheduler.abort([f"{number}"])
        if number % 100 == 0:
            step(scheduler, now=1.0)
    assert len(scheduler._deadlines._ends) < 1500
    assert ("last", FinishReason.DEADLINE) in names(step(scheduler, now=5e3)[1])


def test_an_abort_frees_blocks_at_once_and_is_told_once() -> None:
    scheduler = make_scheduler()
    for id in "ab":
        scheduler.add(make_request(id, range(9), max_tokens=50, cache_salt=id))
    step(scheduler)
    before = scheduler.blocks.num_available
    scheduler.abort(["a", "a", "never was"])
    assert scheduler.blocks.num_available == before + 3
    assert names(step(scheduler)[1]) == [("a", FinishReason.ABORT), ("b", None)]
    scheduler.abort(["b"])
    assert scheduler.has_work, "the end is still to be told"
    assert names(step(scheduler)[1]) == [("b", FinishReason.ABORT)]
    assert not scheduler.has_work


def test_no_usable_logits_end_with_error_and_poison_no_prefix() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_request("a", range(9)))
    scheduler.add(make_request("b", range(20, 25), arrival=1))
    batch = scheduler.schedule(0)
    outputs = scheduler.update(batch, [SampledToken(None), SampledToken(4)], 0)
    assert names(outputs) == [("a", FinishReason.ERROR), ("b", None)]
    assert (outputs[0].token_ids, scheduler.blocks.num_cached) == ((), 0)
    scheduler.check_integrity()


def test_emitted_tokens_of_a_replay_count_and_are_not_told_again() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_request("a", range(5), max_tokens=4, emitted=(7, 7)))
    plan, outputs = step(scheduler)
    assert plan == [("a", 7)]
    assert (outputs[0].token_ids, outputs[0].queue_seconds) == ((7,), None)
    assert names(step(scheduler)[1]) == [("a", FinishReason.LENGTH)]


def test_times_and_batch_sizes() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=12)
    scheduler.add(make_request("a", range(16), max_tokens=2, arrival=1.0))
    assert step(scheduler, now=3.0) == ([("a", 12)], [])
    first = step(scheduler, now=5.0)[1][0]
    assert (first.queue_seconds, first.prefill_seconds, first.batch_size_mean) == (2.0, 2.0, None)
    scheduler.add(make_request("b", range(50, 53)))
    last = next(output for output in step(scheduler, now=6.0)[1] if output.request_id == "a")
    assert (last.queue_seconds, last.finish_reason, last.batch_size_mean) == (None, FinishReason.LENGTH, 4 / 3)


def test_a_step_needs_room_for_prefill_beside_a_full_batch() -> None:
    with pytest.raises(ValueError, match="no room"):
        Scheduler(BlockManager(4, 16), BatchingPolicy(32, 16, 0.1), max_num_seqs=17, max_model_len=64)


def teach(scheduler: Scheduler, steps: int = 100) -> None:
    """Steps of 10 ms and 1 ms a token: of guesses that are right every other time, two pay."""
    for number in range(steps):
        tokens = 1 + number % 40
        scheduler.policy.observe(StepWork(tokens), 0.01 + 0.001 * tokens)


def test_the_cheapest_to_compute_again_is_preempted_but_never_the_first() -> None:
    scheduler = make_scheduler(num_blocks=7, prefix_caching=False)
    scheduler.add(make_request("short and first", range(4), max_tokens=9))
    scheduler.add(make_request("short", range(30, 34), max_tokens=9, arrival=1))
    scheduler.add(make_request("long", range(20, 28), max_tokens=9, arrival=2))
    step(scheduler)
    assert step(scheduler)[0] == [("short and first", 1), ("short", 1), ("long", 1)], "seven blocks are taken"
    for _ in range(3):
        step(scheduler)
    plan, _ = step(scheduler)
    assert [name for name, _ in plan] == ["short and first", "long"]
    assert scheduler.waiting[0].request.id == "short"


def test_a_deadline_out_of_reach_ends_at_once_and_one_within_reach_does_not() -> None:
    scheduler = make_scheduler(num_blocks=64, prefix_caching=False)
    teach(scheduler)
    scheduler.add(make_request("hopeless", range(60), deadline=0.05))
    scheduler.add(make_request("fine", range(60), deadline=0.2, arrival=1))
    plan, outputs = step(scheduler, now=0.0)
    assert names(outputs)[0] == ("hopeless", FinishReason.DEADLINE)
    assert ("fine", 60) in plan
    assert scheduler.num_hopeless == 1


@pytest.mark.parametrize("owners", [1, 5])
def test_a_crowd_of_newcomers_in_time_is_looked_at_once(monkeypatch: pytest.MonkeyPatch, owners: int) -> None:
    """Each look costs as much as the queue is long. Who is in reach behind all of the queue needs none of its own."""
    scheduler = make_scheduler(num_blocks=64)
    teach(scheduler)
    looks: list[str] = []
    ahead_of = scheduler._ahead_of

    def counted(sequence: Sequence) -> Backlog:
        looks.append(sequence.request.id)
        return ahead_of(sequence)

    monkeypatch.setattr(scheduler, "_ahead_of", counted)
    for number in range(200):
        request = make_request(str(number), range(8), deadline=1e6, arrival=number, owner=str(number % owners))
        scheduler.add(request)
    step(scheduler)
    assert not looks
    scheduler.add(make_request("hurried", range(60), deadline=0.05, arrival=900))
    scheduler.add(make_request("line", range(8), deadline=1e6, arrival=901, priority=-2))
    _, outputs = step(scheduler)
    assert looks == ["hurried", "line"] and ("hurried", FinishReason.DEADLINE) in names(outputs)


def test_a_prompt_that_waited_too_long_for_its_first_token_is_not_computed() -> None:
    """When it came there was time enough. What others have computed of it meanwhile counts."""
    scheduler = make_scheduler(num_blocks=64, max_num_seqs=1)
    teach(scheduler)
    scheduler.add(make_request("first", range(60), max_tokens=3))
    scheduler.add(make_request("late", range(100, 160), deadline=1.0, arrival=1))
    scheduler.add(make_request("known", range(60), deadline=1.0, arrival=2))
    steps = [step(scheduler, now=now) for now in (0.0, 0.1, 0.2, 0.95)]
    assert [plan for plan, _ in steps] == [[("first", 60)], [("first", 1)], [("first", 1)], [("known", 4)]]
    assert ("late", FinishReason.DEADLINE) in names(steps[-1][1])
    assert scheduler.num_hopeless == 1


def test_a_cached_prefix_is_no_work_in_the_forecast() -> None:
    scheduler = make_scheduler(num_blocks=64)
    teach(scheduler)
    scheduler.add(make_request("a", range(60), max_tokens=1))
    step(scheduler)
    scheduler.add(make_request("b", range(60), deadline=0.05, max_tokens=1))
    assert scheduler.backlog().tokens == 4
    assert names(step(scheduler, now=0.0)[1]) == [("b", FinishReason.LENGTH)]


def speculating(num_blocks: int = 64) -> Scheduler:
    policy = BatchingPolicy(64, 4, 1e9)
    scheduler = Scheduler(BlockManager(num_blocks, 4), policy, 8, 1024, speculation=True)
    teach(scheduler)
    return scheduler


def drafted(scheduler: Scheduler, prompt: list[int], **fields: Any) -> tuple[int, ...]:
    """The drafts of the first decode of a request whose first token is 4."""
    scheduler.add(make_request("a", prompt, **fields))
    step(scheduler, token=4)
    (item,) = scheduler.schedule(0).scheduled
    assert item.num_tokens == 1 + len(item.draft_token_ids)
    assert len(item.sequence.block_table) * 4 >= item.sequence.num_computed_tokens + item.num_tokens
    return item.draft_token_ids


REPEATING = [2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]


def test_drafts_ride_behind_a_decode_that_repeats_its_context() -> None:
    assert drafted(speculating(), REPEATING, max_tokens=50) == (5,)


def test_no_more_drafts_than_tokens_are_wanted() -> None:
    assert drafted(speculating(), REPEATING, max_tokens=3) == (5,)
    assert drafted(speculating(), REPEATING, max_tokens=2) == ()


def test_no_drafts_beside_a_prefill_without_repetition_or_where_they_are_off() -> None:
    assert drafted(speculating(), list(range(30, 41)), max_tokens=50) == ()
    plain = make_scheduler(num_blocks=64)
    teach(plain)
    assert drafted(plain, REPEATING, max_tokens=50) == ()
    scheduler = speculating()
    scheduler.add(make_request("a", REPEATING, max_tokens=50))
    step(scheduler, token=4)
    scheduler.add(make_request("b", range(50, 60), arrival=1))
    assert step(scheduler)[0] == [("a", 1), ("b", 10)]


def test_true_drafts_are_taken_and_the_rest_is_dropped() -> None:
    scheduler = speculating()
    assert drafted(scheduler, REPEATING, max_tokens=50) == (5,)
    sequence = scheduler.running[0]
    batch = Batch((Scheduled(sequence, 4, (5, 6, 7)),))
    sampled = SampledToken(5, following=(SampledToken(6), SampledToken(90)))
    outputs = scheduler.update(batch, [sampled], 0)
    assert [output.token_ids for output in outputs] == [(5,), (6,), (90,)]
    assert (sequence.num_computed_tokens, sequence.num_remaining_tokens) == (14, 1)
    assert len(sequence.block_table) == 4, "a block that only drafts had needed is given back"
    assert (scheduler.outputs.num_accepted_tokens, sequence.num_steps) == (2, 2)
    scheduler.check_integrity()


def test_a_stop_token_among_the_drafts_ends_it_there() -> None:
    scheduler = speculating()
    drafted(scheduler, REPEATING, max_tokens=50, stop_token_ids=(6,))
    batch = Batch((Scheduled(scheduler.running[0], 4, (5, 6, 7)),))
    outputs = scheduler.update(batch, [SampledToken(5, following=(SampledToken(6), SampledToken(7)))], 0)
    assert [(o.token_ids, o.finish_reason) for o in outputs] == [((5,), None), ((6,), FinishReason.STOP)]
    assert scheduler.blocks.num_available == 64


def test_drafts_never_cost_another_sequence_its_blocks() -> None:
    scheduler = speculating(num_blocks=4)
    assert drafted(scheduler, REPEATING, max_tokens=50) == (), "11 + 1 tokens fill three blocks; the fourth is reserved"
    assert scheduler.num_preemptions == 0


def test_rows_of_one_adapter_lie_side_by_side() -> None:
    scheduler = make_scheduler(num_blocks=64)
    for id, adapter in (("a", "two"), ("b", ""), ("c", "one"), ("d", "two"), ("e", "")):
        scheduler.add(make_request(id, range(4), adapter=adapter))
    assert [id for id, _ in step(scheduler)[0]] == ["b", "e", "c", "a", "d"]
    assert scheduler.adapters_in_use == {"", "one", "two"}
