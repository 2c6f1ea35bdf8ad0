"""The smoke scenario on a real server, alone and through proxies that spoil it; aliases that a scenario moves."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.server import ROOT, Server
from tests.e2e.test_load_runner import assert_recounted, broken, figures_of, recount, run
from tests.proxies import Proxy, listening

SMOKE = ROOT / "loadtest" / "scenarios" / "smoke.toml"
MOVES = """
name = "moves"
[load]
kind = "closed"
users = 4
think_seconds = [0.05, 0.2]
warmup_seconds = 1
seconds = 19
min_samples = 20
[[requests]]
route = "/generate_stream"
max_new_tokens = 8
[[requests]]
route = "/v1/completions"
prompts = 3
max_new_tokens = 8
[[actions]]
kind = "rollout"
at_seconds = 1
model = "demo"
candidate = "1"
weight = 50
[[actions]]
kind = "promote_rollout"
at_seconds = 12
model = "demo"
[limits]
failed_ratio = 0
versions = 2
"""


@pytest.mark.nightly
def test_smoke_holds_and_breaks_by_name_through_a_late_and_through_a_failing_proxy(
    served: Server, tmp_path: Path
) -> None:
    """All three at once: together they are a light load still."""
    with (
        listening(Proxy(served.url, delay=0.15).start) as late,
        listening(Proxy(served.url, share=0.05).start) as failing,
        ThreadPoolExecutor(3) as pool,
    ):
        urls = {"good": served.url, "late": late, "failing": failing}
        began = {name: pool.submit(run, SMOKE, url, tmp_path / name) for name, url in urls.items()}
        ended = {name: each.result() for name, each in began.items()}
    for name in urls:
        assert_recounted(tmp_path / name)
    assert ended["good"].returncode == 0, ended["good"].stdout
    assert figures_of(tmp_path / "good")["server"]["model"] == "demo:2"
    assert ended["late"].returncode == 1 and "BROKEN  ttft_p50_ms" in ended["late"].stdout
    assert recount(tmp_path / "late")["ttft_p50_ms"] > 150
    assert ended["failing"].returncode == 1 and broken(tmp_path / "failing") == ["failed_ratio"]


@pytest.mark.nightly
def test_a_rollout_is_promoted_under_load_and_undone_after_it(served: Server, tmp_path: Path) -> None:
    (tmp_path / "moves.toml").write_text(MOVES)
    done: subprocess.CompletedProcess[str] = run(tmp_path / "moves.toml", served.url, tmp_path / "out")
    assert done.returncode == 0, done.stdout
    made = figures_of(tmp_path / "out")
    assert set(made["versions"]) == {"demo:1", "demo:2"} and len(made["actions"]) == 2
    alias = "/v1/repository/models/demo/aliases/production"
    with served.client() as client:
        assert client.get(alias).json()["version"] == "2"
        assert client.get(f"{alias}/rollout").json()["rollout"] is None
