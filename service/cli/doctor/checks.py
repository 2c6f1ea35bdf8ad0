"""A check is one thing that may be wrong here: its state, what it is in one sentence, and the way out.

Checks are functions of what was found. They read nothing themselves, so tests give them hosts that do not exist.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from service.engine.runner.native.build import BUILT, COMMAND, FEATURES
from service.evaluation.host.machine import Host
from service.evaluation.host.measured import CannotMeasure, Measured

State = Literal["ok", "warning", "problem"]
OLDEST_PYTHON: Final = (3, 11)
LITTLE_MEMORY: Final = 1 << 30
LITTLE_DISK: Final = 1 << 30
_RECORDS_DISK: Final = 16 << 20  # session database and records of loads, at their start


class Check(msgspec.Struct, frozen=True):
    """`problem`: something prevents serving. `way_out` is "" where nothing is wrong."""

    name: str
    state: State
    says: str
    way_out: str = ""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What is around the host: the server's port, the data directory and the default model.

    `port_taken_by`: "" where the port is free, "dosirak" where a server of this project answers there, else the reason
    why it cannot be listened on. `unwritable`: why the data directory cannot be written, "" where it can. `model`: the
    default model's reference; `loading_bytes`: the memory that it needs, None where there is no such version, and
    `no_model` says so. `new_disk` is what serving still writes before it can answer. `compiler`: the C++ compiler's
    path, "" without one. `breaches`: sentences about gated aliases whose versions break their limits."""

    address: str
    port_taken_by: str
    unwritable: str
    model: str
    loading_bytes: int | None
    no_model: str
    new_disk: int
    device: str
    compiler: str
    breaches: tuple[str, ...] = ()

    @property
    def serves_already(self) -> bool:
        """Whether what serving needs is in use by a server that runs."""
        return self.port_taken_by == "dosirak"


def checks(
    host: Host, around: Surroundings, measured: Measured | None, failure: CannotMeasure | None = None
) -> Iterator[Check]:
    """Yields every check. `measured` is None where measuring failed, or nothing was measured yet."""
    yield _python(host)
    yield _tried(failure) if failure else _kernels(host, around, measured)
    yield _memory(host, around)
    yield _threads(host)
    yield _disk(host, around)
    yield _directory(host, around)
    yield _port(around)
    yield _model(around)
    yield _gate(around)
    yield _graphics(host, around, measured)
    yield _load(host)


def _python(host: Host) -> Check:
    version = tuple(int(part) for part in re.findall(r"\d+", host.software.python)[:2])
    if version < OLDEST_PYTHON:
        return Check(
            "python", "problem", f"Python {host.software.python} is too old", "install Python 3.11, then `make install`"
        )
    missing = sorted(name for name, release in host.software.packages.items() if release is None)
    if missing:
        return Check("python", "problem", f"{', '.join(missing)} is not installed", "run `make install`")
    return Check("python", "ok", f"Python {host.software.python}, torch {host.software.packages['torch']}")


def _tried(failure: CannotMeasure) -> Check:
    if not failure.ended:
        return Check("kernels", "warning", f"nothing was measured: {failure}", "run `dosirak doctor` again")
    way = f"delete {BUILT}, run `{COMMAND}`, and report this"
    return Check("kernels", "problem", f"the kernels could not be run: {failure}", way)


def _kernels(host: Host, around: Surroundings, measured: Measured | None) -> Check:
    if measured is None:
        chosen = next((each.level for each in host.kernels if each.runs), "none, torch operations serve")
        return Check("kernels", "ok", f"not tried; by the processor's features: {chosen}")
    if not measured.kernels:
        way = f"run `{COMMAND}`"
        way = way if around.compiler else f"install g++ or clang++, then {way}"
        return Check("kernels", "warning", f"torch operations serve, several times slower: {measured.no_kernels}", way)
    if measured.kernels == "portable" and FEATURES.get("avx2"):
        lacks = sorted(FEATURES["avx2"] - set(host.processor.features))
        if lacks and host.processor.architecture.lower() in ("x86_64", "amd64"):
            says = f"the processor has no {', '.join(lacks)}: the portable kernels serve, many times slower"
            return Check("kernels", "warning", says, "use a host with AVX2, or pass its features on to this guest")
    return Check("kernels", "ok", f"native kernels for {measured.kernels}")


def _memory(host: Host, around: Surroundings) -> Check:
    free = host.memory.available
    limit = f", limited to {gigabytes(host.memory.limit)} by the control group" if host.memory.limit else ""
    says = f"{gigabytes(free)} of {gigabytes(host.memory.total)} are free{limit}"
    if around.loading_bytes is not None and around.loading_bytes > free and not around.serves_already:
        says += f", and {around.model} needs {gigabytes(around.loading_bytes)}"
        return Check("memory", "problem", says, "end other processes, raise the limit, or serve a smaller model")
    if free < LITTLE_MEMORY:
        return Check("memory", "warning", says, "end other processes: the KV cache takes a share of what is free")
    return Check("memory", "ok", says)


def _threads(host: Host) -> Check:
    usable, engine, said = host.processor.usable_cores, host.threads.engine, host.threads.variables
    if engine > usable:
        says = f"an engine has {engine} threads on {usable} usable cores, and they wait for one another"
        return Check("threads", "warning", says, "unset DOSIRAK_THREADS, or give this process more cores")
    if said.get("OMP_WAIT_POLICY", "").lower() == "active" or said.get("GOMP_SPINCOUNT", "").lower() == "infinity":
        says = "OpenMP's threads never sleep, so that steps are slow as soon as other work wants a core"
        return Check("threads", "warning", says, "unset OMP_WAIT_POLICY and GOMP_SPINCOUNT")
    bound = [name for name in ("OMP_PROC_BIND", "GOMP_CPU_AFFINITY") if said.get(name, "false").lower() != "false"]
    if bound:
        says = f"{bound[0]} binds threads, and the engines of several models share the same cores"
        return Check("threads", "warning", says, f"unset {bound[0]}: engines place their threads themselves")
    return Check("threads", "ok", f"{engine} threads an engine, {usable} usable cores of {host.processor.cores}")


def _disk(host: Host, around: Surroundings) -> Check:
    says = f"{gigabytes(host.disk.free)} of {gigabytes(host.disk.total)} are free for {host.disk.directory}"
    way = "free disk space (`dosirak model gc`), or point DOSIRAK_DATA_DIR to another disk"
    if host.disk.free < around.new_disk + _RECORDS_DISK and not around.serves_already:
        return Check("disk", "problem", f"{says}, too little to start", way)
    if host.disk.free < LITTLE_DISK:
        return Check("disk", "warning", f"{says}, too little to import a model", way)
    return Check("disk", "ok", says)


def _directory(host: Host, around: Surroundings) -> Check:
    if around.unwritable:
        says = f"the data directory {host.disk.directory} cannot be written: {around.unwritable}"
        way = f"give its owner to this user (`chown -R $(id -un) {host.disk.directory}`), or set DOSIRAK_DATA_DIR"
        return Check("directory", "problem", says, way)
    made = "" if host.disk.exists else ", made at the first start"
    return Check("directory", "ok", f"the data directory {host.disk.directory} can be written{made}")


def _port(around: Surroundings) -> Check:
    if around.serves_already:
        return Check("port", "ok", f"a Dosirak server already answers at {around.address}")
    if around.port_taken_by:
        says = f"{around.address} cannot be listened on: {around.port_taken_by}"
        return Check("port", "problem", says, "end what listens there, or set DOSIRAK_PORT to another port")
    return Check("port", "ok", f"{around.address} is free")


def _model(around: Surroundings) -> Check:
    if around.no_model:
        way = "import it (`dosirak model import SOURCE NAME`), or set DOSIRAK_DEFAULT_MODEL"
        return Check("model", "problem", around.no_model, way)
    return Check("model", "ok", f"the default model is {around.model}")


def _gate(around: Surroundings) -> Check:
    if around.breaches:
        way = "roll the alias back, or promote another version (`dosirak model promote`)"
        return Check("gate", "warning", "; ".join(around.breaches), way)
    return Check("gate", "ok", "no gated alias points to a version that breaks its limits")


def _graphics(host: Host, around: Surroundings, measured: Measured | None) -> Check:
    usable = measured is not None and measured.cuda
    if around.device.startswith("cuda") and not usable:
        says = f"the settings say that models run on {around.device}, and torch finds no CUDA device"
        way = "install a driver and a torch with CUDA, or set DOSIRAK_DEVICE=auto and remove DOSIRAK_DEVICES"
        return Check("graphics", "problem", says, way)
    if host.graphics is None:
        return Check("graphics", "ok", "no NVIDIA driver: models run on the processor")
    found = f"NVIDIA driver {host.graphics.driver} ({', '.join(host.graphics.devices) or 'no device'})"
    if not usable:
        way = "install a torch with CUDA beside it (https://pytorch.org), or ignore this"
        return Check("graphics", "warning", f"{found}, but torch finds no CUDA device", way)
    return Check("graphics", "ok", f"{found}; the forecasts below are the processor's")


def _load(host: Host) -> Check:
    if host.load > host.processor.usable_cores / 2:
        says = f"{host.load:.1f} threads were running on {host.processor.usable_cores} cores in the last minute"
        return Check(
            "load", "warning", says, "run `dosirak doctor` again when it is quiet: its figures are too low now"
        )
    return Check("load", "ok", "the machine is quiet")


def gigabytes(count: int) -> str:
    """Returns bytes as people read them: 10^9 bytes are a GB."""
    if count < 1e8:
        return f"{count / 1e6:,.0f} MB"
    return f"{count / 1e9:,.1f} GB"
