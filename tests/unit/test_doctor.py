"""The doctor: checks on hosts that do not exist, forecasts by hand, and what it finds on this one."""

from __future__ import annotations

import dataclasses
import io
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from rich.console import Console
from typer.testing import CliRunner

from loadtest.bench.running import free_port
from models.imports.starter import WEIGHTS, publish_demo
from models.repository.repository import Repository
from models.weights.shapes import TYPICAL
from service import cli
from service.cli.doctor.checks import Check, State, Surroundings, checks
from service.cli.doctor.command import show
from service.cli.doctor.diagnosis import PRECISIONS, Diagnosis, forecasts
from service.cli.doctor.surroundings import look
from service.evaluation.host import machine
from service.evaluation.host import measured as measuring
from service.evaluation.host.machine import Disk, Graphics, Host, Memory, Threads
from service.evaluation.host.measured import CannotMeasure, Measured
from service.host import processor_vendor
from service.settings import Settings
from tests.hosts import GB, HOST, MEASURED, SURROUNDINGS

ROOT = Path(__file__).parent.parent.parent


def found(host: Host = HOST, around: Surroundings = SURROUNDINGS, figures: Measured | None = MEASURED) -> list[Check]:
    return list(checks(host, around, figures))


def failed(why: str, ended: bool) -> list[Check]:
    return list(checks(HOST, SURROUNDINGS, None, CannotMeasure(why, ended)))


def test_a_good_host_has_nothing_to_mend() -> None:
    assert {each.state for each in found()} == {"ok"}
    assert not any(each.way_out for each in found())


def around(**changes: Any) -> Surroundings:
    return dataclasses.replace(SURROUNDINGS, **changes)


def host(**changes: object) -> Host:
    return replace(HOST, **changes)


def python(**changes: object) -> list[Check]:
    return found(host(software=replace(HOST.software, **changes)))


def memory(available: int, limit: int | None = None) -> list[Check]:
    return found(host(memory=Memory(8 * GB, available, limit)))


def threads(count: int = 8, **variables: str) -> list[Check]:
    return found(host(threads=Threads(count, variables)))


def disk(free: int) -> list[Check]:
    return found(host(disk=Disk("~/d", True, 10 * GB, free)))


OLD = host(processor=replace(HOST.processor, features=("fma",)))
PLAIN = replace(MEASURED, kernels="portable")
TORCH = replace(MEASURED, kernels="", no_kernels="not built")
DRIVER = Graphics("550.54.14", ("NVIDIA H100",))
BREACH = "demo@production is demo:2, which breaks its gate: KL divergence 0.0540 nats, at most 0.02 of demo:1"
BUILDER = ROOT / "service" / "engine" / "runner" / "native" / "build.py"
BUILD = f"run `python {BUILDER}`"
WRONG: list[tuple[str, State, str, str, list[Check]]] = [
    ("python", "problem", "3.10.2 is too old", "3.11", python(python="3.10.2")),
    ("python", "problem", "torch is not", "make install", python(packages={"torch": None})),
    ("kernels", "problem", "SIGILL", BUILD, failed("ended by SIGILL", ended=True)),
    ("kernels", "warning", "not done after 60 s", "again", failed("it was not done after 60 s", ended=False)),
    ("kernels", "warning", "not built", BUILD, found(figures=TORCH)),
    ("kernels", "warning", "torch operations", "install g++", found(figures=TORCH, around=around(compiler=""))),
    ("kernels", "warning", "no avx2", "host with AVX2", found(OLD, figures=PLAIN)),
    ("memory", "problem", "needs 1.0 GB", "smaller model", memory(GB // 2)),
    ("memory", "problem", "limited to 2.0 GB", "limit", memory(GB // 2, 2 * GB)),
    ("memory", "warning", "1.1 GB", "KV cache", memory(1_050_000_000)),
    ("threads", "warning", "16 threads on 8", "DOSIRAK_THREADS", threads(16)),
    ("threads", "warning", "never sleep", "unset", threads(OMP_WAIT_POLICY="ACTIVE")),
    ("threads", "warning", "binds", "unset", threads(OMP_PROC_BIND="close")),
    ("disk", "problem", "too little to start", "gc", disk(1_000_000)),
    ("disk", "warning", "import a model", "DATA_DIR", disk(500_000_000)),
    ("directory", "problem", "permission denied", "chown", found(around=around(unwritable="permission denied"))),
    ("port", "problem", "in use", "DOSIRAK_PORT", found(around=around(port_taken_by="Address already in use"))),
    ("model", "problem", "no model chat", "import", found(around=around(loading_bytes=None, no_model="no model chat"))),
    ("gate", "warning", "demo@production is", "roll the alias back", found(around=around(breaches=(BREACH,)))),
    ("graphics", "problem", "no CUDA", "DOSIRAK_DEVICE=auto", found(around=around(device="cuda"))),
    ("graphics", "warning", "550.54.14", "torch with CUDA", found(host(graphics=DRIVER))),
    ("load", "warning", "6.0 threads", "again", found(host(load=6.0))),
]


@pytest.mark.parametrize(("name", "state", "says", "way", "all_"), WRONG, ids=[f"{w[0]} {w[2]}" for w in WRONG])
def test_what_is_wrong_and_the_way_out(name: str, state: State, says: str, way: str, all_: list[Check]) -> None:
    one = next(each for each in all_ if each.name == name)
    assert one.state == state
    assert says in one.says and way in one.way_out
    assert [each.name for each in all_ if each.state == "problem"] == ([name] if state == "problem" else [])


def test_what_is_no_fault() -> None:
    serving = around(port_taken_by="dosirak", loading_bytes=40 * GB, new_disk=200 * GB)
    assert {each.state for each in found(around=serving)} == {"ok"}, "it serves already"
    with_cuda = found(host(graphics=DRIVER), around(device="cuda"), replace(MEASURED, cuda=True))
    assert {each.state for each in with_cuda} == {"ok"}
    untried = found(figures=None)
    assert {each.state for each in untried} == {"ok"} and "avx512" in untried[1].says


# What this host has.


def test_levels_by_features_are_those_that_open() -> None:
    from service.engine.runner.native.build import FEATURES, LEVELS, library_path
    from service.engine.runner.native.library import Library, open_library

    flags = frozenset(machine._flags())
    for level in (each for each in LEVELS if library_path(each).exists()):
        assert isinstance(open_library(level), Library) == (FEATURES[level] <= flags), level


@pytest.mark.parametrize(("vendor", "chosen"), [("GenuineIntel", "avx512"), ("AuthenticAMD", "avx512-bf16")])
def test_bf16_dot_products_are_for_those_that_they_make_faster(vendor: str, chosen: str) -> None:
    from service.engine.runner.native.build import FEATURES, LEVELS, library_path

    if chosen not in LEVELS or not library_path(chosen).exists():
        pytest.skip("no such kernels on this machine")
    found = machine.kernels(FEATURES["avx512-bf16"] | FEATURES["avx2"], vendor)
    assert [each.level for each in found if each.runs] == [chosen]
    assert found[0].level == "amx" and found[0].why.startswith("the processor lacks amx")


def test_a_processor_without_avx2_gets_the_portable_kernels() -> None:
    levels = {each.level: each for each in machine.kernels(frozenset({"sse2", "fma"}), "GenuineIntel")}
    assert levels["portable"].runs or "not built" in levels["portable"].why
    if "avx2" in levels:  # on this kind of processor
        assert levels["avx2"].why == "the processor lacks avx2"
        assert levels["avx512"].why.startswith("the processor lacks avx512_vnni, avx512bw")


CPUINFO = """processor\t: 0
vendor_id\t: ExampleMaker
model name\t: Example 9000
physical id\t: 0
core id\t\t: 0
flags\t\t: fma avx2 nothing

processor\t: 1
model name\t: Example 9000
physical id\t: 0
core id\t\t: 0
flags\t\t: fma avx2 nothing

processor\t: 2
physical id\t: 1
core id\t\t: 0
"""


def test_facts_from_the_kernels_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "PROC", tmp_path)
    (tmp_path / "cpuinfo").write_text(CPUINFO)
    told = machine.processor.__wrapped__()
    assert (told.name, told.cores, told.features) == ("Example 9000", 2, ("avx2", "fma"))
    assert processor_vendor(tmp_path) == "ExampleMaker" and not processor_vendor(tmp_path / "nothing")
    assert machine.graphics() is None
    gpu = tmp_path / "driver/nvidia/gpus/0000:01:00.0"
    gpu.mkdir(parents=True)
    (gpu / "information").write_text("Model: \t\t NVIDIA H100\nIRQ: 5\n")
    said = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22\nGCC version: 12\n"
    (tmp_path / "driver/nvidia/version").write_text(said)
    assert machine.graphics() == DRIVER


def test_looking_leaves_nothing_behind(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data", port=free_port())
    told = look(settings)
    assert (told.unwritable, told.port_taken_by, told.no_model) == ("", "", "")
    assert told.loading_bytes and told.new_disk
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "is a file" in look(Settings(data_dir=tmp_path / "file" / "data", port=free_port())).unwritable
    assert look(Settings(data_dir=Path("/proc/dosirak"), port=free_port())).unwritable


def test_a_default_model_that_is_not_there(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data", port=free_port(), default_model="chat")
    assert "repository is empty" in look(settings).no_model
    publish_demo(Repository(settings.data_dir), WEIGHTS)
    assert "no model chat" in look(settings).no_model
    assert look(Settings(data_dir=settings.data_dir, port=free_port())).model == "demo:2"


def test_a_directory_with_nothing_gets_the_first_of_the_catalogue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `dosirak serve` would find it; whoever names a default model has that one."""
    assert look(Settings(data_dir=tmp_path / "data", port=free_port())).model == "demo, published at the first start"
    monkeypatch.delenv("DOSIRAK_DEFAULT_MODEL")
    found = look(Settings(data_dir=tmp_path / "data", port=free_port()))
    assert found.model == "smollm2 where the Python index gives it, or else demo, published at the first start"
    assert found.no_model == "" and 0 < found.new_disk < 30e6, "what does not fit is not fetched"
    assert not (tmp_path / "data").exists()


@contextmanager
def listening(body: bytes) -> Iterator[int]:
    """A server of some project on a free port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield int(server.server_address[1])
        finally:
            server.shutdown()


@pytest.mark.parametrize(
    ("body", "by"),
    [(b'{"name": "Dosirak"}', "dosirak"), (b"<html>", "in use"), (b"[]", "in use"), (b"\xff", "in use")],
)
def test_a_port_that_is_taken(body: bytes, by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.cli.serve.checks.ANSWER_SECONDS", 60.0)
    with listening(body) as port:
        assert by in look(Settings(data_dir=tmp_path, port=port)).port_taken_by


def test_a_child_that_ends_without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    def ending(program: str) -> str:
        real = subprocess.run
        with monkeypatch.context() as patch, pytest.raises(CannotMeasure) as raised:
            patch.setattr(
                "service.evaluation.host.measured.subprocess.run",
                lambda command, **options: real([sys.executable, "-c", program], **options),
            )
            measuring.measure(Settings())
        return str(raised.value)

    assert ending("import os, signal; os.kill(os.getpid(), signal.SIGILL)") == "it was ended by SIGILL"
    assert ending("raise MemoryError('too much')") == "MemoryError: too much"
    assert ending("raise SystemExit(3)") == "it ended with exit status 3"
    monkeypatch.setattr(measuring, "SECONDS", 0.2)
    assert "not done after" in ending("import time; time.sleep(60)")


def test_figures_are_kept_for_the_same_processor(tmp_path: Path) -> None:
    measuring.keep(MEASURED, tmp_path)
    assert measuring.known(tmp_path, HOST.processor) == MEASURED
    assert measuring.known(tmp_path, replace(HOST.processor, name="Another")) is None
    (tmp_path / measuring.FILE).write_bytes(b"{")
    assert measuring.known(tmp_path, HOST.processor) is None
    measuring.keep(MEASURED, tmp_path / "missing")
    assert not (tmp_path / "missing").exists()


# The command.


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DOSIRAK_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("DOSIRAK_PORT", str(free_port()))
    return tmp_path / "data"


def test_the_command_measures_and_speaks_json(data_dir: Path) -> None:
    data_dir.mkdir()
    result = CliRunner().invoke(cli.app, ["doctor", "--json"], catch_exceptions=False)
    told = msgspec.json.decode(result.stdout, type=Diagnosis)
    assert (result.exit_code, told.serves) == (0, True)
    assert told.measured is not None and told.measured.memory_read_gb_s > 0
    assert all(rate > 0 for rates in told.measured.products.values() for rate in rates.values())
    chosen = [each.level for each in told.host.kernels if each.runs]
    assert chosen == ([told.measured.kernels] if told.measured.kernels else [])
    assert {each.model for each in told.forecasts} == {"demo", *(shape.name for shape in TYPICAL)}
    assert all(each.expected and each.expected.tokens_per_second[32] > 0 for each in told.forecasts)
    quiet = next(each for each in told.checks if each.name == "load").state == "ok"
    assert (measuring.known(data_dir, told.host.processor) is not None) == quiet, "figures of a busy host mislead"


def test_what_prevents_serving_is_the_exit_status(data_dir: Path) -> None:
    run = CliRunner()
    assert run.invoke(cli.app, ["doctor", "--no-measure"], catch_exceptions=False).exit_code == 0
    with socket.create_server(("127.0.0.1", Settings().port)):
        result = run.invoke(cli.app, ["doctor", "--no-measure"], catch_exceptions=False)
    assert result.exit_code == 1
    assert "problem port" in result.output and "DOSIRAK_PORT" in result.output
    assert "TinyLlama-1.1B" in result.output and not data_dir.exists()


@pytest.mark.parametrize("width", [80, 110, 200])
def test_no_figure_is_cut_off(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = replace(MEASURED, processor=machine.processor().name)
    told = Diagnosis("0", True, HOST, figures, tuple(forecasts(Settings(), HOST, figures)), tuple(found()))
    with (to := Console(width=width, file=io.StringIO())).capture() as capture:
        show(told, to)
    lines = capture.get().splitlines()
    rows = [line for line in lines if any(f" {shape.name} " in line for shape in TYPICAL)]
    assert len(rows) == len(PRECISIONS) * len(TYPICAL) and not any("…" in line for line in rows)
    assert any("convert" in line and "prefill" in line for line in lines) == (width >= 110)


def test_the_json_has_no_other_fields_than_its_schema(data_dir: Path) -> None:
    shown = json.loads(CliRunner().invoke(cli.app, ["doctor", "--json", "--no-measure"]).stdout)
    schema = msgspec.json.schema(Diagnosis)["$defs"]
    assert shown.keys() == schema["Diagnosis"]["properties"].keys()
    assert shown["host"].keys() == schema["Host"]["properties"].keys()
    assert shown["forecasts"][0].keys() == schema["Forecast"]["properties"].keys()
    assert shown["checks"][0].keys() == schema["Check"]["properties"].keys()


def test_every_field_is_documented() -> None:
    page = (ROOT / "docs/doctor.md").read_text()
    schema = msgspec.json.schema(Diagnosis)["$defs"]
    missing = {name for each in schema.values() for name in each.get("properties", ()) if f"`{name}`" not in page}
    assert not missing
    for check in found():
        assert f"| `{check.name}` |" in page


def test_a_bug_report_asks_for_it() -> None:
    assert "dosirak doctor --json" in (ROOT / ".github/ISSUE_TEMPLATE/bug_report.yml").read_text()
