"""The mapping puts a request, a configuration and a version's files into vLLM's words."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from models.checkpoint.safetensors_file import read_header
from models.manifest import Manifest, ModelReference, precision_of
from service.engine.kinds import environment
from service.engine.kinds.kinds import EngineKind, kind_of, require_servable, require_vllm
from service.engine.protocol.config import EngineConfig
from service.engine.protocol.messages import AGEING_SECONDS, Request, SamplingParams, TokenLogprobs
from service.engine.vllm import mapping
from service.engine.vllm.releases import refusal
from service.engine.vllm.tally import StepFacts, Tally
from service.engine.vllm.weights import configuration, written_for_peft, written_for_vllm
from service.errors import Conflict, InvalidRequest, UnsupportedField
from tests.fake_vllm import interpreter
from tests.versions import FACTS


def manifest_of(precision: str) -> Manifest:
    facts = replace(FACTS, precision=precision_of(precision))
    return Manifest.of(facts, ModelReference("m", "1"), "", ())


CONFIG = EngineConfig(model_dir="m", precision="bf16", max_model_len=512)


def request_of(emitted: tuple[int, ...] = (), **params: Any) -> Request:
    return Request("a", (1, 2, 3), SamplingParams(**{"max_tokens": 8, **params}), emitted=emitted)


def test_sampling_of_a_new_request() -> None:
    asked = mapping.sampling(
        request_of(temperature=0.7, top_p=0.9, top_k=5, min_p=0.1, seed=7, stop_token_ids=(2,), logit_bias=((4, 1.5),))
    )
    assert asked["ignore_eos"] is True and asked["detokenize"] is False and asked["stop_token_ids"] == [2]
    assert (asked["top_p"], asked["top_k"], asked["min_p"], asked["seed"]) == (0.9, 5, 0.1, 7)
    assert asked["logit_bias"] == {4: 1.5}
    assert "logprobs" not in asked and "prompt_logprobs" not in asked


@pytest.mark.parametrize("greedy", [{"temperature": 0.0}, {"temperature": 1e-6}, {"temperature": 0.9, "top_p": 0.0}])
def test_greedy_is_temperature_0_without_a_seed(greedy: dict[str, float]) -> None:
    asked = mapping.sampling(request_of((), **greedy))
    assert asked["temperature"] == 0.0
    assert "seed" not in asked and "top_p" not in asked


def test_a_replay_is_a_request_for_what_is_left() -> None:
    request = request_of((9, 8, 7), min_tokens=5, prompt_logprobs=2, temperature=0.5, seed=11)
    asked = mapping.sampling(request)
    assert mapping.prompt(request)["prompt_token_ids"] == [1, 2, 3, 9, 8, 7]
    assert (asked["max_tokens"], asked["min_tokens"]) == (5, 2)
    assert "prompt_logprobs" not in asked, "they were given out with the first token"
    seeds = {mapping.seed(request_of((5,) * count, seed=11)) for count in range(4)}
    assert len(seeds) == 4 and mapping.seed(request_of(seed=11)) == 11
    assert all(0 <= each < 1 << 63 for each in seeds)
    assert asked["seed"] == mapping.seed(request_of((1, 1, 1), seed=11)), "of (seed, position) alone"


@pytest.mark.parametrize("penalty", ["frequency_penalty", "presence_penalty"])
def test_what_counts_an_answers_own_tokens_cannot_go_on(penalty: str) -> None:
    assert mapping.can_go_on(request_of((), **{penalty: 0.5}))
    assert not mapping.can_go_on(request_of((4,), **{penalty: 0.5}))
    assert mapping.can_go_on(request_of((4,), repetition_penalty=1.2))


def test_no_tokens_wanted_is_one_token_asked_for() -> None:
    assert mapping.sampling(request_of(max_tokens=0, prompt_logprobs=0))["max_tokens"] == 1


def test_salts_are_texts_that_vllm_takes() -> None:
    owned = Request("a", (1,), SamplingParams(max_tokens=1), cache_salt="a/b@c\\" * 40)
    assert "cache_salt" not in mapping.prompt(request_of())
    assert len(mapping.prompt(owned)["cache_salt"]) == 64 and mapping.prompt(owned)["cache_salt"].isalnum()


def ranked(priority: int, arrival: float) -> int:
    return mapping.priority(Request("a", (1,), SamplingParams(max_tokens=1), priority=priority, arrival=arrival))


def test_priorities_turn_round() -> None:
    assert ranked(9, 5.0) < ranked(1, 5.0) < ranked(0, 5.0) < ranked(0, 5.001)


def test_a_request_that_waits_gains_priorities_in_vllm_as_in_our_own_engine() -> None:
    """One for each AGEING_SECONDS, although vLLM takes the priority once."""
    low = ranked(0, 1000.0)
    assert ranked(9, 1000 + 9 * AGEING_SECONDS - 0.001) < low < ranked(9, 1000 + 9 * AGEING_SECONDS + 0.001)
    assert ranked(1, 1000 + AGEING_SECONDS) == low
    assert ranked(0, 1e9) < ranked(-1, 0.0) < ranked(-2, 0.0) == ranked(-2, 50.0), "background work gains nothing"


def test_logprobs_are_sorted_with_ties_by_id() -> None:
    known = {5: SimpleNamespace(logprob=-3.0), 9: SimpleNamespace(logprob=-1.0), 2: SimpleNamespace(logprob=-1.0)}
    assert mapping.logprobs([5], [known], 2) == (TokenLogprobs(-3.0, ((2, -1.0), (9, -1.0))),)
    scored = request_of(prompt_logprobs=0, prompt_logprobs_start=2)
    given = [None, *({token: SimpleNamespace(logprob=-float(token))} for token in (2, 3))]
    assert mapping.prompt_logprobs(scored, given) == (TokenLogprobs(-3.0),)


def test_engine_arguments() -> None:
    kind = kind_of("vllm", {"tensor_parallel": 2, "max_loras": 2, "max_lora_rank": 16})
    config = EngineConfig(model_dir="m", precision="bf16", max_model_len=512, options=dict(kind.options))
    arguments = mapping.engine_arguments(config, "elsewhere", 1 << 20)
    assert (arguments["model"], arguments["dtype"], arguments["kv_cache_memory_bytes"]) == (
        "elsewhere",
        "bfloat16",
        1 << 20,
    )
    assert (arguments["tensor_parallel_size"], arguments["pipeline_parallel_size"]) == (2, 1)
    assert (arguments["enable_lora"], arguments["max_loras"], arguments["max_lora_rank"]) == (True, 2, 16)
    assert arguments["scheduling_policy"] == "priority"
    assert "kv_cache_memory_bytes" not in mapping.engine_arguments(CONFIG, "m", 0)


def test_an_int8_version_is_written_once_with_the_same_bytes(tmp_path: Path) -> None:
    source = tmp_path / "version"
    source.mkdir()
    tensors = {
        "lm_head.weight": ("I8", [2, 2], b"head"),
        "lm_head.weight_scale": ("F32", [2], b"headhead"),
        "model.layers.0.o_proj.weight": ("I8", [2, 2], b"code"),
        "model.layers.0.o_proj.weight_scale": ("F32", [2], b"scalings"),
    }
    (source / "model.safetensors").write_bytes(_file(tensors))
    (source / "config.json").write_text(json.dumps({"tie_word_embeddings": True, "vocab_size": 2}))
    (source / "tokenizer.json").write_text("{}")
    target = Path(written_for_vllm(str(source), "int8", str(tmp_path), "d1"))
    header = {each.name: (each.dtype, each.shape) for each in read_header(target / "model.safetensors")}
    assert header == {
        "model.layers.0.o_proj.weight": ("I8", (2, 2)),
        "model.layers.0.o_proj.weight_scale": ("F32", (2, 1)),
    }
    assert (target / "model.safetensors").read_bytes().endswith(b"codescalings")
    config = json.loads((target / "config.json").read_text())
    assert config["quantization_config"]["config_groups"]["group_0"]["weights"]["strategy"] == "channel"
    assert (target / "tokenizer.json").exists()
    written = (target / "config.json").stat().st_mtime_ns
    assert written_for_vllm(str(source), "int8", str(tmp_path), "d1") == str(target)
    assert (target / "config.json").stat().st_mtime_ns == written
    assert written_for_vllm("anywhere", "bf16", "", "") == "anywhere"
    with pytest.raises(ValueError, match="llm-int8"):
        written_for_vllm(str(source), "llm-int8", str(tmp_path), "d2")


def _file(tensors: dict[str, tuple[str, list[int], bytes]]) -> bytes:
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def test_an_adapter_is_written_as_peft_has_it(tmp_path: Path) -> None:
    source = tmp_path / "version"
    source.mkdir()
    module = "model.layers.0.self_attn.q_proj"
    (source / "adapter_config.json").write_text(json.dumps({"modules": {module: {"rank": 8, "scale": 2.0}}}))
    tensors = {f"{module}.{side}.weight": ("F32", [1, 1], b"1234") for side in ("lora_A", "lora_B")}
    (source / "adapter_model.safetensors").write_bytes(_file(tensors))
    target = Path(written_for_peft(str(source), str(tmp_path), "d", 16))
    names = [each.name for each in read_header(target / "adapter_model.safetensors")]
    assert names == [f"base_model.model.{module}.{side}.weight" for side in ("lora_A", "lora_B")]
    config = json.loads((target / "adapter_config.json").read_text())
    assert (config["r"], config["rank_pattern"], config["alpha_pattern"]) == (8, {module: 8}, {module: 16.0})
    with pytest.raises(ValueError, match='"max_lora_rank": 8'):
        written_for_peft(str(source), str(tmp_path), "other", 4)


def test_peft_patterns_keep_different_scales() -> None:
    config = configuration({"a.q": {"rank": 8, "scale": 2.0}, "a.v": {"rank": 4, "scale": 0.5}})
    assert (config["r"], config["target_modules"]) == (8, ["q", "v"])
    assert (config["rank_pattern"], config["alpha_pattern"]) == ({"a.q": 8, "a.v": 4}, {"a.q": 16.0, "a.v": 2.0})


def test_the_cost_line_learns_from_vllms_steps() -> None:
    tally = Tally(100, 2048, 8)
    for number in range(40):
        prefill = 64 if number % 4 == 0 else 0
        facts = StepFacts(prefill_tokens=prefill, prefill_sequences=prefill // 64, decode_tokens=2, decode_sequences=2)
        tally.observe(facts, 100, has_first_token=bool(prefill), seconds=0.01 + 0.001 * facts.tokens)
    stats = tally.stats([200, 100])
    assert (stats.steps_total, stats.prefill_tokens_total) == (40, 640)
    assert stats.cost_error < 0.2
    assert 0.2 < stats.backlog_seconds < 0.5, "300 tokens at a millisecond each"
    forecast = tally.forecast_seconds(100, [64])
    assert forecast is not None and 0.05 < forecast < 0.12
    assert len(tally.take_steps()) == 32 and tally.take_steps() == ()
    tally.rest()
    rested = tally.stats([])
    assert (rested.running, rested.step_tokens, rested.step_sequences) == (0, 2, 2), "metrics observe the last step"


@dataclass
class Taken:
    num_steps: int = 0
    own_seconds: float = 0.0


def test_a_full_batch_says_how_soon_a_seat_is_free() -> None:
    """Four answers at once, of ten steps of 20 ms and 1 ms a token: one ends every 60 ms."""
    tally, running = Tally(100, 2048, 4), [Taken() for _ in range(4)]
    assert (tally.stats([5] * 6).seats, tally.stats([5] * 6).seat_seconds) == (4, 0.0), "nothing has ended"
    for number in range(60):
        facts = StepFacts(decode_tokens=4, decode_sequences=4, running=4, waiting=6, kv_usage=0.5)
        tally.observe(facts, 400, has_first_token=False, seconds=0.024)
        for answer in running:
            tally.charge(answer, 1)
        if number % 10 == 9:
            for answer in running:
                tally.end(answer)
            running = [Taken() for _ in range(4)]
    stats = tally.stats([5] * 6, running)
    assert stats.seats == 4 and stats.seat_seconds == pytest.approx(0.06, rel=0.2)
    assert stats.backlog_seconds == pytest.approx(6 * stats.seat_seconds), "each of the six waits for an end"
    tally.observe(replace(facts, kv_usage=1.0, running=2), 200, has_first_token=False, seconds=0.022)
    assert tally.stats([5] * 6).seats == 2, "the cache is full before"


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("tgi", None, "dosirak, vllm"),
        ("vllm", {"hosts": 2}, "tensor_parallel, pipeline_parallel, nodes, .*, executor"),
        ("vllm", {"nodes": 2}, "multiple of the nodes"),
        ("vllm", {"executor": "dask"}, "'dask'; there are: mp, ray"),
        ("vllm", {"executor": 1}, "is 1; there are: mp, ray"),
        ("vllm", {"nodes": "two"}, "'two'; it must be from 1 to 64"),
        ("vllm", {"nodes": 65}, "from 1 to 64"),
        ("dosirak", {"tensor_parallel": 2}, "it has none"),
        ("vllm", {"tensor_parallel": 0}, "from 1 to 64"),
        ("vllm", {"max_lora_rank": 7}, "8, 16"),
    ],
)
def test_engines_and_options_that_there_are_not(name: str, options: dict[str, int | str] | None, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        kind_of(name, options)


def test_what_vllm_cannot_serve_is_refused_by_name() -> None:
    kind = kind_of("vllm", None)
    for precision in ("llm-int8", "int8-weight", "int4"):
        with pytest.raises(UnsupportedField, match=precision):
            require_servable(kind, manifest_of(precision), has_encoder=False, kv_cache_dtype="auto")
        require_servable(EngineKind(), manifest_of(precision), has_encoder=False, kv_cache_dtype="int8")
    with pytest.raises(UnsupportedField, match="encoder"):
        require_servable(kind, manifest_of("bf16"), has_encoder=True, kv_cache_dtype="auto")
    with pytest.raises(UnsupportedField, match="DOSIRAK_KV_CACHE_DTYPE"):
        require_servable(kind, manifest_of("bf16"), has_encoder=False, kv_cache_dtype="int8")
    require_servable(kind, manifest_of("int8"), has_encoder=False, kv_cache_dtype="auto")


@pytest.mark.parametrize("found", ["", "0.31.2", "0.33.0", "1.0", "nightly"])
def test_releases_that_were_not_tested(found: str) -> None:
    assert "make vllm" in refusal(found)
    assert not refusal("0.32.0") and not refusal("0.32.1.post1")


def test_an_interpreter_without_vllm_is_a_conflict_with_the_command(tmp_path: Path) -> None:
    require_vllm(interpreter(tmp_path))
    for python in (interpreter(tmp_path, has_vllm=False), tmp_path / "nowhere"):
        with pytest.raises(Conflict, match="make vllm"):
            require_vllm(python)


def test_threads_of_a_core_in_its_own_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM sets these for ranks that are processes; in our worker's process it sets nothing."""
    monkeypatch.setattr(environment, "has_gpu", lambda: False)
    monkeypatch.setattr(environment, "usable_cores", lambda: 2)
    python, library = tmp_path / "bin" / "python", tmp_path / "lib/python3.11/site-packages/torch/lib/libgomp.so.1"
    library.parent.mkdir(parents=True)
    library.touch()

    given = {"LD_PRELOAD": "mine.so", "OMP_NUM_THREADS": "9"}

    def variables(cores: list[int]) -> dict[str, str]:
        return environment.threads_of_one(given, cores, python)

    alone = variables([1, 3])
    assert alone["LD_PRELOAD"] == f"mine.so:{library}"
    assert (alone["OMP_NUM_THREADS"], alone["GOMP_CPU_AFFINITY"]) == ("2", "1 3")
    a_part = variables([1])
    assert a_part["OMP_NUM_THREADS"] == "1" and "GOMP_CPU_AFFINITY" not in a_part, "another replica has the other core"
    ranks = environment.vllm_environment(given, tmp_path, 2, [1, 3])
    assert ranks["LD_PRELOAD"] == "mine.so" and ranks["VLLM_CPU_OMP_THREADS_BIND"] == "1|3"
    library.unlink()
    assert "GOMP_CPU_AFFINITY" not in variables([1, 3])
