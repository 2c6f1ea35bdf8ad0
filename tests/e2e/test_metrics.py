"""The figures of utilisation against a count from the model's config and what clients were told."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from models.weights.shapes import Shape
from service.engine.process.work_done import WINDOW_STEPS
from tests.e2e.server import Server

LABELS = {"model": "demo", "version": "2"}
ACCEPTED = ("dosirak_spec_decode_num_accepted_tokens_total", "")
STORY = "도시락 두 개 주세요. 김치볶음밥 하나, 불고기 하나 주세요. " * 4


def scraped(client: httpx.Client) -> dict[tuple[str, str], float]:
    """Values of demo:2 by metric and phase."""
    text = client.get("/metrics").text
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    mine = [each for each in samples if LABELS.items() <= each.labels.items()]
    return {(each.name, each.labels.get("phase", "")): each.value for each in mine}


def asked(client: httpx.Client, text: str, tokens: int) -> dict[str, int]:
    body: dict[str, Any] = {"inputs": text, "parameters": {"max_new_tokens": tokens, "ignore_eos": True}}
    response = client.post("/generate", json=body)
    assert response.status_code == 200, response.text
    usage: dict[str, int] = response.json()["usage"]
    return usage


def flops(shape: Shape, usage: dict[str, int]) -> float:
    """PaLM, appendix B, forward only: from the first token that is not cached to the last but one of the answer."""
    last = usage["prompt_tokens"] + usage["completion_tokens"] - 1
    positions = range(usage["cached_tokens"], last)
    per_pair = 4 * shape.layers * shape.heads * shape.head_dim
    tokens = 2 * shape.layers * shape.layer_weights * len(positions)
    pairs = per_pair * sum(position + 1 for position in positions)
    return tokens + pairs + 2 * shape.head_weights * usage["completion_tokens"]


@pytest.mark.nightly
def test_flops_are_those_of_config_and_usage(served: Server, data_dir: Path) -> None:
    [config] = data_dir.glob("models/demo/2/config.json")
    shape = Shape.of_config("demo", json.loads(config.read_bytes()))
    with served.client() as client:
        asked(client, STORY, 4)
        before = scraped(client)
        usages = [asked(client, STORY + f"{n}번째: " * (n % 3), 48 + n) for n in range(12)]
        deadline = time.monotonic() + 60
        while True:  # whether drafts pay is measured while they run, so a busy machine may draft none for a while
            after = scraped(client)
            if after[ACCEPTED] > before[ACCEPTED] or time.monotonic() > deadline:
                break
            usages.append(asked(client, STORY, 96))
    gained = {key: value - before[key] for key, value in after.items()}
    counted = sum(gained["dosirak_model_flops_total", phase] for phase in ("prefill", "decode"))
    assert counted == pytest.approx(sum(flops(shape, usage) for usage in usages), rel=0.05)
    assert sum(usage["cached_tokens"] for usage in usages) > 500, "some prompts were cached"
    assert gained[ACCEPTED] > 0, "some drafts came true"
    drafted, accepted = (gained[f"dosirak_spec_decode_num_{kind}_tokens_total", ""] for kind in ("draft", "accepted"))
    assert drafted >= accepted, "how many did not depends on what a step costs just now"


def test_utilisation_is_the_rate_over_the_peak(served: Server) -> None:
    """The window holds the last requests and a part of one, so its rate lies among theirs, noise or not."""
    step_count, flops_done, seconds = (
        ("dosirak_step_duration_seconds_count", ""),
        ("dosirak_model_flops_total", "decode"),
        ("dosirak_step_seconds_total", "decode"),
    )
    rates: list[float] = []
    with served.client() as client:
        first = found = scraped(client)
        while found[step_count] - first[step_count] < 1.5 * WINDOW_STEPS:
            before = found
            asked(client, f"{len(rates)} {STORY}", 48)
            found = scraped(client)
            rates.append((found[flops_done] - before[flops_done]) / (found[seconds] - before[seconds]))
        info = client.get("/info").json()["engine"]
    assert (info["no_peaks"], info["peaks"]["dtype"]) == ("", "int8")
    rate = found["dosirak_mfu_ratio", "decode"] * found["dosirak_peak_flops", ""]
    assert 0.95 * min(rates) <= rate <= 1.05 * max(rates)
    for phase in ("prefill", "decode"):
        assert 0 < found["dosirak_mfu_ratio", phase] <= 1
        assert 0 < found["dosirak_bandwidth_ratio", phase] <= 1
