"""Native kernels, on every instruction set that this processor has, against plain torch formulas."""

from __future__ import annotations

import os
import random
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.weights.hadamard import transformed
from models.weights.int4 import Int4Weight, decoded
from models.weights.loading import DTYPES, Outliers
from service.engine.runner.forwards.foreign import replace_linears
from service.engine.runner.linear import quantize_rows
from service.engine.runner.native import build
from service.engine.runner.native.library import Library, library, load, unavailable
from service.engine.runner.native.linear import NativeLinear
from service.engine.runner.native.structs import HeadsStruct
from service.host import usable_cores
from tests.kernels import LIBRARIES
from tests.sanitized import TESTS as SANITIZED
from tests.sanitized import VARIABLE

ROOT = Path(__file__).parents[2]

KINDS = [
    "fp32",
    "bf16",
    "int8",
    "int8-hadamard",
    "int8-weight",
    "int8-weight-hadamard",
    "llm-int8",
    "int4",
    "int4-g128",
]
SHAPES = [(48, 96), (37, 50), (200, 331), (1, 7), (129, 1), (600, 1024), (33, 7000)]
GROUPS = {"int4": 32, "int4-g128": 128}
GROUPED = [(48, 128), (70, 256), (600, 1024)]
COUNTS = (*range(1, 71), 128, 130, 257)

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture(params=LIBRARIES)
def kernels(request: pytest.FixtureRequest) -> Library:
    return LIBRARIES[str(request.param)]


def test_what_is_not_built_is_built_by_the_command_that_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In any directory: a bento and a wheel run code that is not of this one."""
    monkeypatch.setattr("service.engine.runner.native.library._any_built", lambda: False)
    said = str(load.__wrapped__())
    python, program = shlex.split(said.removeprefix("not built, run "))
    assert python == "python" and Path(program) == Path(build.__file__)
    shown = subprocess.run(
        [sys.executable, program, "--help"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "--strict" in shown.stdout


@dataclass
class Part:
    weight: Tensor | Int4Weight
    scale: Tensor
    bias: Tensor | None
    weight_only: bool = False
    outliers: Outliers | None = None
    hadamard: int = 1


def part(out: int, depth: int, kind: str, biased: bool = True) -> Part:
    generator = torch.Generator().manual_seed(out)
    weight: Any
    if kind in GROUPS:
        weight = int4_weight(out, depth, GROUPS[kind], generator)
    elif "int8" in kind:
        weight = torch.randint(-127, 128, (out, depth), dtype=torch.int8, generator=generator)
    else:
        weight = torch.randn(out, depth, generator=generator).to(DTYPES[kind])
    scale = torch.rand(out, generator=generator) * 0.01
    made = Part(weight, scale, torch.randn(out, generator=generator) if biased else None, "weight" in kind)
    made.hadamard = 64 if kind.endswith("hadamard") else 1
    if kind == "llm-int8":
        columns = torch.arange(0, depth, max(1, depth // 5), dtype=torch.int32)
        weight[:, columns.long()] = 0
        kept = torch.randn(out, len(columns), generator=generator).to(torch.bfloat16)
        made.outliers = Outliers(columns, kept)
    return made


def int4_weight(out: int, depth: int, group: int, generator: torch.Generator) -> Int4Weight:
    """Any codes, scales and bases, also those that wrap around and that no quantizer makes."""

    def drawn(*shape: int) -> Tensor:
        return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)

    groups = (out, depth // group)
    return Int4Weight(drawn(out, depth // 2), drawn(*groups), drawn(*groups).view(torch.int8))


def rows(count: int, depth: int) -> Tensor:
    return torch.randn(count, depth, generator=torch.Generator().manual_seed(count))


def formula(x: Tensor, parts: list[Part], reach: int) -> Tensor:
    outs = []
    for one in parts:
        weight = decoded(one.weight)
        mixed = transformed(x, one.hadamard)
        if one.weight_only:
            out = mixed.double() @ weight.double().T * one.scale
        elif weight.dtype is torch.int8:
            columns = torch.zeros(0, dtype=torch.long) if one.outliers is None else one.outliers.columns.long()
            codes, row_scale = quantize_rows(mixed.index_fill(1, columns, 0), reach)
            out = (codes.double() - (reach + 1)) @ weight.double().T * one.scale * row_scale
            if one.outliers is not None:
                out = out + x[:, columns].double() @ one.outliers.weight.double().T
        else:
            out = x.double() @ weight.double().T
        outs.append(out if one.bias is None else out + one.bias)
    return torch.cat(outs, dim=1)


def test_the_tests_that_run_sanitized_are_there() -> None:
    assert [path for path in SANITIZED if not (ROOT / path).exists()] == []


def test_they_are_built_where_they_can_be() -> None:
    """A machine with a compiler tests its kernels; elsewhere the tests here are skipped and torch operations serve."""
    if not any(map(shutil.which, build.COMPILERS)):
        pytest.skip("no C++ compiler: torch operations serve")
    assert library() is not None, f"{unavailable()}: run make install"


def shapes_of(kind: str) -> list[tuple[int, int]]:
    return GROUPED if kind in GROUPS else SHAPES


@pytest.mark.parametrize("kind", KINDS)
def test_products_are_those_of_the_formula(kernels: Library, kind: str) -> None:
    """Parts whose edge lies inside of a panel, with and without bias. bf16 is multiplied in bf16 where the
    processor does that."""
    errors = {}
    for out, depth in shapes_of(kind):
        parts = [part(out, depth, kind), part(max(1, out // 3), depth, kind, biased=False)]
        x = rows(40, depth)
        if kind == "bf16":
            x = x.to(torch.bfloat16).float()
        want = formula(x, parts, kernels.activation_reach)
        errors[out, depth] = float((NativeLinear(kernels, parts)(x) - want).abs().max() / want.abs().max())
    assert {shape: error for shape, error in errors.items() if not error < 1e-5} == {}


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_depends_neither_on_the_others_nor_on_the_prefetch(kernels: Library, kind: str) -> None:
    differ = []
    for out, depth in shapes_of(kind):
        layer, x = NativeLinear(kernels, [part(out, depth, kind)]), rows(300, depth)
        whole = layer(x)
        differ += [(out, depth, count) for count in COUNTS if not torch.equal(layer(x[:count]), whole[:count])]
        before = kernels.functions.dosirak_prefetch_in_streams(0)
        kernels.functions.dosirak_prefetch_in_streams(1 - before)
        try:
            differ += [(out, depth, -n) for n in (1, 2, 7, 13, 65, 130) if not torch.equal(layer(x[:n]), whole[:n])]
        finally:
            kernels.functions.dosirak_prefetch_in_streams(before)
    assert differ == [], "outputs, inputs, rows; of the other way to prefetch below zero"


@pytest.mark.parametrize("kind", GROUPS)
def test_4_bit_layers_are_8_bit_layers_of_their_decoded_weights(kernels: Library, kind: str) -> None:
    """Bit for bit, for every number of rows; in a fraction of the memory where there are kernels for them."""
    assert kernels.has_int4 == (kernels.level != "portable")
    for out, depth in GROUPED:
        one = part(out, depth, kind)
        coded, plain = NativeLinear(kernels, [one]), NativeLinear(kernels, [replace(one, weight=decoded(one.weight))])
        x = rows(300, depth)
        for count in (*range(1, 35), 64, 65, 130, 300):
            assert torch.equal(coded(x[:count]), plain(x[:count])), count
        assert (coded.packed.nbytes < 0.6 * plain.packed.nbytes) == kernels.has_int4


def test_parts_of_several_bits_are_joined_in_8(kernels: Library) -> None:
    """As q, k and v are, if the quantizer kept one of them in 8 bits; and parts of different groups."""
    fine, coarse, wide = part(48, 128, "int8"), part(32, 128, "int4"), part(40, 128, "int4-g128")
    x = rows(9, 128)
    for parts in ([coarse, fine], [coarse, wide]):
        plain = [replace(each, weight=decoded(each.weight)) for each in parts]
        assert torch.equal(NativeLinear(kernels, parts)(x), NativeLinear(kernels, plain)(x))


def test_parts_with_different_outliers_are_not_joined(kernels: Library) -> None:
    one, other = part(48, 96, "llm-int8"), part(48, 96, "llm-int8")
    assert other.outliers is not None
    other.outliers = Outliers(other.outliers.columns + 1, other.outliers.weight)
    for parts in ([one, other], [one, part(48, 96, "int8")]):
        with pytest.raises(ValueError, match="different outliers"):
            NativeLinear(kernels, parts)


def test_parts_with_different_transforms_are_not_joined(kernels: Library) -> None:
    for parts in ([part(48, 96, "int8-hadamard"), part(48, 96, "int8")], [replace(part(48, 96, "int8"), hadamard=48)]):
        with pytest.raises(ValueError, match="Hadamard transforms of"):
            NativeLinear(kernels, parts)


def test_nothing_saturates(kernels: Library) -> None:
    """The largest codes and weights that can meet, in every pair."""
    weight = torch.full((40, 512), 127, dtype=torch.int8)
    weight[1::2] = -127
    layer = NativeLinear(kernels, [Part(weight, torch.ones(40), None)])
    for value in (127.0, -127.0):
        out = layer(torch.full((3, 512), value))
        torch.testing.assert_close(out[1, :2], torch.tensor([value, -value]) * 127 * 512, rtol=1e-6, atol=0)


@pytest.mark.parametrize("depth", [1, 8, 50, 64, 2048])
def test_codes_are_those_of_the_fallback(kernels: Library, depth: int) -> None:
    """Bit for bit, halves included."""
    halves = torch.arange(depth).float() - depth / 2 + 0.5
    for x in (
        rows(1, depth)[0],
        rows(2, depth)[1] * 1e-20,
        halves * (kernels.activation_reach / halves.abs().max().clamp(min=1)),
        torch.zeros(depth),
    ):
        want, want_scale = quantize_rows(x[None], kernels.activation_reach)
        codes, scale = kernels.quantize(x)
        assert torch.equal(codes, want[0].int() - (kernels.activation_reach + 1))
        assert scale == float(want_scale)


def test_rows_that_are_no_numbers_say_so_and_harm_nobody(kernels: Library) -> None:
    for kind in KINDS:
        layer, x = NativeLinear(kernels, [part(48, 128, kind)]), rows(5, 128)
        clean = layer(x)
        for wrong in (float("nan"), float("inf"), float("-inf")):
            spoilt = x.clone()
            spoilt[2, 7] = wrong
            out = layer(spoilt)
            assert not bool(out[2].isfinite().any())
            assert torch.equal(out[[0, 1, 3, 4]], clean[[0, 1, 3, 4]])


def test_weights_without_a_kernel_are_refused(kernels: Library) -> None:
    with pytest.raises(ValueError, match="float16"):
        NativeLinear(kernels, [Part(torch.zeros(4, 4, dtype=torch.float16), torch.ones(4), None)])
    with pytest.raises(ValueError, match="bfloat16, "):
        NativeLinear(kernels, [part(4, 4, "bf16"), part(4, 4, "int8")])


class Peeking(nn.Module):
    """A library's model in small; it may read its layer's weight instead of calling it."""

    device = torch.device("cpu")

    def __init__(self, peeks: bool) -> None:
        super().__init__()
        text = SimpleNamespace(vocab_size=20)
        self.config = SimpleNamespace(get_text_config=lambda: text, is_encoder_decoder=False)
        self.embedding, self.layer, self.peeks = nn.Embedding(20, 16), nn.Linear(16, 20), peeks

    def forward(self, input_ids: Tensor, use_cache: bool) -> SimpleNamespace:
        x = self.embedding(input_ids)
        return SimpleNamespace(logits=F.linear(x, self.layer.weight) if self.peeks else self.layer(x))


@pytest.mark.parametrize("peeks", [False, True])
def test_layers_are_replaced_only_where_the_model_calls_them(kernels: Library, peeks: bool) -> None:
    model: Any = Peeking(peeks)
    dense = model.layer
    assert replace_linears(model, kernels) is not peeks
    assert (model.layer is dense) is peeks
    assert isinstance(model.layer, NativeLinear) is not peeks


def test_attention_of_any_shape(kernels: Library) -> None:
    """Odd head sizes, many heads to one, values of another size, windows, softcap, block sizes that divide nothing."""
    for seed in range(12):
        attention_of(kernels, seed)


def attention_of(kernels: Library, seed: int) -> None:
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    kv_heads, group, size = rng.choice((1, 2, 3)), rng.choice((1, 2, 5, 8, 130)), rng.choice((1, 5, 16, 200))
    key_dim, value_dim, length = rng.choice((3, 16, 24, 80)), rng.choice((1, 16, 40)), rng.choice((1, 9, 128, 300))
    window, softcap = rng.choice((0, 1, 40, 150)), rng.choice((0.0, 0.0, 15.0))
    table = list(range(-(-length // size)))
    rng.shuffle(table)
    blocks = torch.tensor(table)
    keys = torch.randn(len(table), kv_heads, size, key_dim, generator=generator)
    values = torch.randn(len(table), kv_heads, size, value_dim, generator=generator)
    heads = kv_heads * group
    query = torch.randn(length, heads, key_dim, generator=generator)
    struct = HeadsStruct(
        heads,
        kv_heads,
        key_dim,
        value_dim,
        len(table),
        size,
        0,
        window,
        window > 0,  # the table of window blocks is the same one here
        0.3,
        softcap,
        keys.data_ptr(),
        values.data_ptr(),
    )
    out = kernels.attend(struct, torch.tensor([[0, length, 0, 0]]), blocks, query)

    def gathered(cache: Tensor) -> Tensor:
        flat = cache[blocks].transpose(1, 2).reshape(-1, kv_heads, cache.shape[-1])[:length]
        return flat.double().repeat_interleave(group, 1).transpose(0, 1)

    scores = query.double().transpose(0, 1) @ gathered(keys).transpose(1, 2) * 0.3
    if softcap:
        scores = (scores / softcap).tanh() * softcap
    age = torch.arange(length)[:, None] - torch.arange(length)
    hidden = (age < 0) | (age >= (window or length))
    want = (scores.masked_fill(hidden, float("-inf")).softmax(-1) @ gathered(values)).transpose(0, 1)
    torch.testing.assert_close(out.double(), want, atol=2e-5, rtol=2e-5)
    last = kernels.attend(struct, torch.tensor([[0, 1, length - 1, 0]]), blocks, query[-1:])
    assert torch.equal(last, out[-1:])


def test_without_a_compiler_the_reason_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(build, "BUILT", tmp_path / "built")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(build.CannotBuild, match="install one of"):
        build.build()
    with pytest.raises(build.CannotBuild, match="no-such-compiler"):
        build.build("no-such-compiler")


def test_a_failing_compiler_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(build, "BUILT", tmp_path / "built")
    with pytest.raises(build.CannotBuild, match="failed for"):
        build.build("false")
    assert [path.name for path in (tmp_path / "built").iterdir()] == [build.UNDER_WAY]


@pytest.mark.skipif(bool(os.environ.get(VARIABLE)), reason="it builds and opens plain kernels")
def test_who_needs_the_kernels_waits_for_a_build_that_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(build, "BUILT", tmp_path / "built")
    build.await_build()  # where none ever ran
    compiler, begun, goes_on = tmp_path / "g++", tmp_path / "begun", tmp_path / "goes_on"
    compiler.write_text(
        f"#!/bin/sh\ntouch {begun}\nwhile [ ! -e {goes_on} ]; do sleep 0.01; done\n"
        'while [ $# -gt 1 ]; do [ "$1" = -o ] && touch "$2"; shift; done\n'
    )
    compiler.chmod(0o755)
    with ThreadPoolExecutor() as threads:
        building = threads.submit(build.build, str(compiler), ["portable"])
        while not begun.exists():
            time.sleep(0.01)
        waiting = threads.submit(load.__wrapped__)
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.2)
        goes_on.touch()
        assert "portable" in str(waiting.result(timeout=60))  # it was opened, and holds nothing
        assert building.result() == [build.library_path("portable")]
    build.await_build()  # where none runs any more


def test_an_old_compiler_builds_what_it_knows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(build, "BUILT", tmp_path / "built")
    old, last = tmp_path / "g++", next(reversed(build.LEVELS))
    first = build.LEVELS[next(iter(build.LEVELS))][-1]
    old.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *{first}*) echo "g++: error: unrecognized command-line option \'{first}\'" >&2; exit 1;; esac\n'
        'while [ $# -gt 1 ]; do [ "$1" = -o ] && touch "$2"; shift; done; touch "$1"\n'
    )
    old.chmod(0o755)
    built = build.build(str(old))
    assert build.library_path(last) in built
    assert len(built) == sum(first not in flags for flags in build.LEVELS.values()) < len(build.LEVELS)


@pytest.mark.skipif(build.MACHINE != "x86_64", reason="the levels are of x86_64")
@pytest.mark.parametrize(
    ("cpuinfo", "level"),
    [
        ("vendor_id : AuthenticAMD flags : fma avx2 avx512bw avx512vl avx512dq avx512_vnni avx512_bf16", "avx512-bf16"),
        ("vendor_id : GenuineIntel flags : fma avx2 avx512bw avx512vl avx512dq avx512_vnni avx512_bf16", "avx512"),
        ("vendor_id : GenuineIntel flags : sse4_2 fma avx2", "avx2"),
        ("", "portable"),
    ],
)
def test_the_fastest_level_of_a_processor_is_built(monkeypatch: pytest.MonkeyPatch, cpuinfo: str, level: str) -> None:
    tried: list[str] = []

    def pretend(_: str | None, levels: list[str]) -> list[Path]:
        tried.extend(levels)
        return [Path(*levels)]

    monkeypatch.setattr(build, "build", pretend)
    monkeypatch.setattr(build, "_runs", lambda path: True)
    assert build.build_fastest(cpuinfo=cpuinfo) == [Path(level)]
    tried.clear()
    monkeypatch.setattr(build, "_runs", lambda path: path.name == "portable")  # the system holds all others back
    assert build.build_fastest(cpuinfo=cpuinfo) == [Path("portable")]
    assert tried[0] == level


@pytest.mark.parametrize("machine", ["x86_64", "aarch64", "riscv64"])
def test_every_machine_has_levels_that_say_what_they_need(machine: str) -> None:
    levels = [*build.levels_of(machine)]
    assert levels[-1] == "portable" and not build.levels_of(machine)["portable"] and not build.FEATURES["portable"]
    assert all(build.FEATURES[level] for level in levels[:-1])
    assert (len(levels) == 1) == (machine == "riscv64")


def test_machines_do_not_take_each_others_libraries() -> None:
    paths = {build.library_path("portable", machine=machine) for machine in ("x86_64", "aarch64")}
    assert len(paths) == 2


def test_a_library_is_named_after_what_it_was_made_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = build.library_path("portable")
    shutil.copytree(build.SOURCES, tmp_path / "src")
    monkeypatch.setattr(build, "SOURCES", tmp_path / "src")
    assert build.library_path("portable") == before
    (tmp_path / "src" / "rows.h").write_text("// nothing")
    assert build.library_path("portable") != before


@pytest.mark.skipif(usable_cores() < 2 or not hasattr(os, "sched_getaffinity"), reason="one core, or not told which")
def test_threads_that_woke_on_one_core_part(kernels: Library) -> None:
    """They are made to: all threads of this process are held on one core, and then let go."""
    kernels.cores(2)  # the threads are there
    allowed = cores_of_threads()
    parted = 0
    for _ in range(20):
        hold({id: {min(cores)} for id, cores in allowed.items()})
        kernels.cores(2)
        hold(allowed)
        parted += len(set(kernels.cores(2))) == 2
    assert parted >= 15, "all of them, but for times at which others want the cores"
    assert all(its == allowed[id] for id, its in cores_of_threads().items() if id in allowed)


def cores_of_threads() -> dict[int, set[int]]:
    found = {}
    for each in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # it has ended meanwhile
            found[int(each.name)] = os.sched_getaffinity(int(each.name))
    return found


def hold(cores: Mapping[int, set[int]]) -> None:
    """Holds each thread that is still there on its cores."""
    for id, its in cores.items():
        with suppress(ProcessLookupError):
            os.sched_setaffinity(id, its)


@pytest.mark.parametrize("words", [["--sanitize"], ["--machine", next(iter(build._OF_MACHINE))]])
def test_the_fastest_is_of_this_machine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    monkeypatch.setattr(build, "MACHINE", "another")
    monkeypatch.setattr("sys.argv", ["build", "--fastest", *words])
    with pytest.raises(SystemExit):
        build.main()
    assert "leave out --sanitize and --machine" in capsys.readouterr().err
