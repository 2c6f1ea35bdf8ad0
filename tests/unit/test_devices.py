"""The host's share and its devices: cores, memory and names; what is no device is refused, and each replica gets
one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs
from pydantic import ValidationError

from models.manifest import Manifest
from models.repository.repository import Repository
from models.weights.loading import resolve_device
from service import host
from service.cli.serve.checks import CannotStart, check_devices
from service.deployments.deployments import Deployments
from service.deployments.engine_options import EngineOptions
from service.engine.kinds.kinds import kind_of
from service.engine.kv_cache.kv_size import LayerShape
from service.engine.protocol.config import EngineConfig
from service.engine.runner.forwards.attention import AttentionPlan, SequenceRows
from service.engine.runner.forwards.forward import CannotServe
from service.engine.runner.kv_cache import KVCache
from service.engine.runner.loading.division import RESERVED_BYTES, kv_room, num_devices
from service.host import absent, for_replicas, num_gpus, parse_devices, placed
from service.settings import Settings, settings_or_exit
from tests.fakes import InProcessEngine
from tests.unit.test_deployments import publish_with_tokenizer
from tests.waiting import until

TWO = ("cuda:0", "cuda:1")
GIB = 1 << 30


def test_names_of_devices() -> None:
    assert parse_devices("cuda:0, cuda:1") == TWO
    assert parse_devices("cpu") == ("cpu",) and parse_devices(" ") == ()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("cuda", "name its number, as in cuda:0"),
        ("cuda:01", "there is no device 'cuda:01'"),
        ("gpu0", "there is no device 'gpu0'"),
        ("cuda:0,", "there is no device ''"),
        ("cuda:0,cuda:0", "cuda:0 is there 2 times: name it once, and set DOSIRAK_REPLICAS"),
        ("cuda:0,cpu,cpu", "cpu is there 2 times"),
        ("cpu,cuda:1", "cpu stands beside cuda"),
    ],
)
def test_what_is_no_device_is_refused_by_name(text: str, sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        Settings(devices=text)


def test_one_setting_says_where_models_run() -> None:
    with pytest.raises(ValidationError, match="both set: remove one"):
        Settings(devices="cuda:0", device="cuda")
    both, one = Settings(devices="cuda:1,cuda:0"), Settings(device="cuda")
    assert (both.first_device, both.device_list, one.first_device, one.device_list) == ("cuda:1", TWO[::-1], "cuda", ())
    assert both.computes_on_gpu(False) and one.computes_on_gpu(False) and Settings().computes_on_gpu(True)
    assert not Settings().computes_on_gpu(False) and not Settings(devices="cpu").computes_on_gpu(True)


def test_replicas_are_one_for_each_device_unless_they_are_set() -> None:
    assert Settings().given_replicas == 1 and Settings(devices="cuda:0,cuda:1").given_replicas is None
    assert Settings(devices="cuda:0,cuda:1", replicas=1).given_replicas == 1


@pytest.mark.parametrize(
    ("visible", "count"),
    [
        (None, 2),
        ("1", 1),
        ("0,1", 2),
        ("1,0,7", 2),
        ("7,0", 0),
        ("", 0),
        ("-1", 0),
        ("GPU-a1b2", 1),
        ("MIG-a,MIG-b", 2),
    ],
)
def test_gpus_are_counted_as_cuda_sees_them(tmp_path: Path, visible: str | None, count: int) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert num_gpus(visible, tmp_path) == count


def test_a_device_that_is_not_there_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    assert absent(TWO, 2) == "" and absent(("cpu",), 0) == ""
    assert absent(TWO, 1) == "cuda:1 is not there; there are: cuda:0"
    with pytest.raises(CannotStart, match="DOSIRAK_DEVICES: cuda:1 is not there; there are: cuda:0"):
        check_devices(Settings(devices="cuda:0,cuda:1"), 1)
    check_devices(Settings(devices="cuda:0,cuda:1"), 2)
    monkeypatch.setenv("DOSIRAK_DEVICES", "cuda:7")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(SystemExit, match="DOSIRAK_DEVICES: cuda:7 is not there; there are: cpu"):
        settings_or_exit()


def test_a_gpu_has_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.cuda.set_device refuses a device without one."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [str(resolve_device(name)) for name in ("auto", "cuda", "cuda:1", "cpu")] == [
        "cuda:0",
        "cuda:0",
        "cuda:1",
        "cpu",
    ]
    with pytest.raises(ValueError, match="cuda:2 is not there; there are: cuda:0, cuda:1"):
        resolve_device("cuda:2")


def test_replicas_go_to_the_devices_with_the_fewest() -> None:
    assert placed(TWO, 3, ()) == ("cuda:0", "cuda:1", "cuda:0")
    assert placed(TWO, 1, ["cuda:0"]) == ("cuda:1",)
    assert placed(TWO, 2, ["cuda:1", "cuda:1"]) == ("cuda:0", "cuda:0")


def test_a_single_replica_has_the_other_devices_behind_its_own() -> None:
    assert for_replicas(TWO, 1, ["cuda:0"]) == ("cuda:1", "cuda:0")
    assert for_replicas(TWO, 2, ["cuda:1", "cuda:1"]) == ("cuda:0", "cuda:0")
    assert for_replicas((), 1, ()) == for_replicas((), 2, ()) == ()


class OnDevice(InProcessEngine):
    """Says that it is where it was put."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self._device = device

    async def start(self, on_loading: Callable[[str, float], None] | None = None) -> None:
        await super().start(on_loading)
        assert self.info is not None
        self.info = structs.replace(self.info, device=self._device)


class World:
    def __init__(self, tmp_path: Path, default_replicas: int | None = None) -> None:
        self.repository = Repository(tmp_path)
        for content in ("one", "two", "three"):
            publish_with_tokenizer(self.repository, content)
        self.options: dict[str, EngineOptions] = {}
        self.deployments = Deployments(
            self.repository,
            self.engine,
            default_model="demo",
            default_replicas=default_replicas,
            devices=TWO,
            drain_timeout=1,
        )

    def engine(self, manifest: Manifest, promised_bytes: int, options: EngineOptions) -> InProcessEngine:
        self.options[manifest.reference] = options
        return OnDevice(options.devices[0])


async def test_each_device_gets_a_replica_and_a_single_one_goes_where_there_is_room(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.deployments.start()
    await until(lambda: world.deployments.phase == "started")
    chosen = world.options["demo:3"]
    assert (chosen.replicas, chosen.devices) == (2, TWO)
    assert [chosen.of_replica(number).devices for number in (0, 1)] == [("cuda:0",), ("cuda:1",)]
    for reference, expected in (("demo:1", TWO), ("demo:2", TWO[::-1])):
        await world.deployments.begin_loading(reference, replicas=1)
        await world.deployments.ensure_loaded(reference)
        assert world.options[reference].devices == expected, "the rest are for layers that its own has no room for"
        assert world.options[reference].of_replica(0).devices == expected
    await world.deployments.unload("demo:1")
    await until(lambda: len(world.deployments.all()) == 2)
    await world.deployments.begin_loading("demo:1", replicas=1)
    assert world.options["demo:1"].devices[0] == "cuda:0", "what was unloaded counts no more"
    await world.deployments.stop()


async def test_a_given_number_of_replicas_is_kept(tmp_path: Path) -> None:
    world = World(tmp_path, default_replicas=3)
    await world.deployments.ensure_loaded("demo:1") if world.deployments.ready else await world.deployments.start()
    await until(lambda: world.deployments.phase == "started")
    assert world.options["demo:3"].devices == ("cuda:0", "cuda:1", "cuda:0")
    await world.deployments.stop()


def test_devices_are_our_own_engine_s(tmp_path: Path) -> None:
    deployments = World(tmp_path).deployments
    replicas = deployments._choice.default_replicas
    assert replicas(kind_of("vllm", None)) == 1 and replicas(kind_of("dosirak", None)) == 2
    engines = deployments._loaded._engines
    assert engines._placed(EngineOptions(2, None, kind_of("vllm", None))) == ()


def config_of(tmp_path: Path, gib: float, precision: str = "bf16", **given: Any) -> EngineConfig:
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(int(gib * GIB))
    return EngineConfig(
        model_dir=str(tmp_path), precision=precision, device="cuda:0", spare_devices=TWO[1:], max_model_len=64, **given
    )


def test_a_model_is_divided_where_one_device_does_not_hold_it(tmp_path: Path) -> None:
    config = config_of(tmp_path, 20)
    assert num_devices(config, [24 * GIB, 24 * GIB]) == 1
    assert num_devices(config, [16 * GIB, 16 * GIB]) == 2
    with pytest.raises(CannotServe, match=r"take 21\.5 GB, and cuda:0, cuda:1 have 21\.5 GB free: name more"):
        num_devices(config, [10 * GIB, 10 * GIB])
    with pytest.raises(CannotServe, match='name several devices in DOSIRAK_DEVICES and load it with "replicas": 1'):
        num_devices(config, [16 * GIB])
    assert num_devices(config, [20 * GIB]) == 1, "as before, where no other is named"
    assert RESERVED_BYTES == GIB


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"precision": "int8"}, "int8 versions are not divided: load the bf16 version, or use vLLM"),
        ({"decoder_start": (0,)}, "encoder-decoder models are not divided"),
        ({"adapters": (("x", "y"),)}, "versions with an adapter are not divided"),
    ],
)
def test_what_cannot_be_divided_is_refused_by_name(tmp_path: Path, given: dict[str, Any], sentence: str) -> None:
    config = config_of(tmp_path, 20, **given)
    assert num_devices(config, [24 * GIB, 24 * GIB]) == 1
    with pytest.raises(CannotServe, match=sentence):
        num_devices(config, [16 * GIB, 16 * GIB])


def test_blocks_fill_the_device_that_is_full_first() -> None:
    assert kv_room([100, 100], [1, 1, 1, 1], [0, 0, 1, 1]) == 200
    assert kv_room([100, 30], [1, 1, 1, 1], [0, 0, 1, 1]) == 60
    assert kv_room([100], [2, 2], [0, 0]) == 100


def test_layers_keys_and_plans_lie_on_the_layers_devices() -> None:
    host, other = torch.device("cpu"), torch.device("meta")
    cache = KVCache([LayerShape(2, 4, 4)] * 2, 4, 8, torch.float32, host, [host, other])
    assert [keys.device for keys in cache.keys] == [each.device for each in cache.values] == [host, other]
    assert cache.is_divided and cache.device_names == "cpu,meta"
    assert not KVCache([LayerShape(2, 4, 4)], 4, 8, torch.float32, host).is_divided
    plan = AttentionPlan(cache, [SequenceRows(0, 3, 0, [0])], 3, 1, host)
    assert plan.on(host) is plan and plan.on(other) is plan.on(other)
    assert plan.on(other).slots.device == other and plan.slots.device == host


V1 = "3:cpu,cpuacct:/unit\n2:memory:/unit\n1:name=systemd:/unit\n0::/unit\n"
V1_LIMITS = {
    "memory/unit/memory.limit_in_bytes": "1000",
    "memory/unit/memory.usage_in_bytes": "700",
    "memory/unit/memory.stat": "inactive_file 1\ntotal_inactive_file 250\n",
    "memory/memory.limit_in_bytes": "9223372036854771712",
    "memory/memory.usage_in_bytes": "5",
    "cpu/unit/cpu.cfs_quota_us": "100000",
    "cpu/unit/cpu.cfs_period_us": "100000",
    "cpu/cpu.cfs_quota_us": "-1",
    "cpu/cpu.cfs_period_us": "100000",
}
V2_LIMITS = {
    "cgroup.controllers": "cpu memory",
    "system.slice/memory.max": "2000",
    "system.slice/memory.current": "1450",
    "system.slice/unit/memory.max": "1000",
    "system.slice/unit/memory.current": "400",
    "system.slice/unit/cpu.max": "100000 100000\n",
}
OUTSIDE = {
    "cgroup.controllers": "cpu memory",
    "memory.max": "1000",
    "memory.current": "450",
    "cpu.max": "150000 100000",
}


@pytest.mark.parametrize(
    ("member", "files", "limit"),
    [
        (V1, V1_LIMITS, 1000),
        ("0::/system.slice/unit\n", V2_LIMITS, 1000),
        ("0::/../../kubepods/pod\n", OUTSIDE, 1000),
        ("0::/docker/1234\n", OUTSIDE, 1000),
    ],
    ids=["version 1", "a service of systemd", "a container", "a container that sees the host's path"],
)
def test_the_limits_of_the_own_control_group_and_those_above_it_hold(
    member: str, files: dict[str, str], limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the root of version 2 was read: elsewhere a service took the whole machine for its own."""
    for name, text in files.items():
        (tmp_path / "cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cgroup" / name).write_text(text)
    (tmp_path / "member").write_text(member)
    monkeypatch.setattr(host, "CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(host, "MEMBERSHIP", tmp_path / "member")
    assert (host.memory_limit(), host.available_memory(), host.usable_cores()) == (limit, 550, 1)


def test_without_limits_the_machine_is_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "CGROUP", tmp_path)
    assert host.memory_limit() is None and host.available_memory() > 0 and host.usable_cores() >= 1


@pytest.mark.parametrize(
    ("files", "available"),
    [
        ({"memory.max": "1000", "memory.current": "700", "memory.stat": "anon 300\ninactive_file 250\n"}, 550),
        ({"memory.max": "1000", "memory.current": "700"}, 300),
        ({"memory.max": "1000", "memory.current": "1700"}, 0),
    ],
)
def test_files_that_the_kernel_keeps_are_free_memory(
    files: dict[str, str], available: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(host, "CGROUP", tmp_path)
    assert host.available_memory() == available
