"""Hosts that do not exist, for the doctor's tests: a good one, and figures that a host could have measured."""

from __future__ import annotations

from service.cli.doctor.checks import Surroundings
from service.evaluation.host.machine import Disk, Host, Kernel, Memory, Processor, Software, Threads
from service.evaluation.host.measured import EngineTimes, Measured

GB = 10**9
PACKAGES: dict[str, str | None] = {"torch": "2.13.0", "transformers": "5.23.0", "bentoml": "1.4.39"}

HOST = Host(
    processor=Processor("Example 9000", "x86_64", 8, 8, ("avx2", "fma", "avx512f", "avx512_vnni")),
    load=0.1,
    kernels=(Kernel("avx512", True, ""), Kernel("portable", False, "avx512 is faster")),
    memory=Memory(64 * GB, 32 * GB, None),
    threads=Threads(8, {"GOMP_SPINCOUNT": "30000"}),
    disk=Disk("~/.local/share/dosirak", True, 500 * GB, 100 * GB),
    graphics=None,
    software=Software("Linux 6.1", "3.11.7", "0.1.0", PACKAGES),
)
SURROUNDINGS = Surroundings(
    address="http://127.0.0.1:3000",
    port_taken_by="",
    unwritable="",
    model="demo:2",
    loading_bytes=GB,
    no_model="",
    new_disk=20_000_000,
    device="auto",
    compiler="/usr/bin/g++",
)
MEASURED = Measured(
    at="2026-11-22T12:00:00+00:00",
    processor="Example 9000",
    threads=8,
    torch="2.13.0",
    kernels="avx512",
    no_kernels="",
    cuda=False,
    memory_read_gb_s=40.0,
    products={
        "int8": {1: 80.0, 8: 500.0, 32: 1000.0, 256: 1200.0},
        "bf16": {1: 40.0, 8: 200.0, 32: 300.0, 256: 400.0},
        "fp32": {1: 20.0, 8: 100.0, 32: 150.0, 256: 200.0},
        "int8-weight": {1: 75.0, 8: 180.0, 32: 190.0, 256: 200.0},
        "int4": {1: 140.0, 8: 600.0, 32: 900.0, 256: 1100.0},
    },
    engine=EngineTimes({1: 2e-4, 8: 4e-4, 32: 1e-3}, 2e-5, {1: 0.0, 8: 1e-9, 32: 1e-9, 256: 1e-9}),
    seconds=4.0,
)
