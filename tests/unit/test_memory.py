"""The C library keeps free memory in few places, and large pieces apart."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PEAK = """
import ctypes, sys, tempfile, threading
from service.memory import LARGE_BYTES, return_peaks

class Info(ctypes.Structure):
    NAMES = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in NAMES.split()]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Info
libc.fopen.restype = ctypes.c_void_p
if sys.argv[1] == "returned":
    return_peaks()
larger = bytearray(200 * LARGE_BYTES)
del larger
before = libc.mallinfo2().hblks
large = bytearray(160 * LARGE_BYTES)
apart = libc.mallinfo2().hblks - before

begin = threading.Barrier(8)
def work():
    begin.wait()
    pieces = [bytes(1000) for _ in range(1000)]
    begin.wait()

threads = [threading.Thread(target=work) for _ in range(8)]
for each in threads: each.start()
for each in threads: each.join()
with tempfile.NamedTemporaryFile() as file:
    out = ctypes.c_void_p(libc.fopen(file.name.encode(), b"w"))
    libc.malloc_info(0, out)
    libc.fclose(out)
    print(apart, file.read().count(b"<heap "))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="what other C libraries keep is not ours to say")
def test_free_memory_lies_in_few_places_and_large_pieces_lie_apart() -> None:
    def behind_a_peak(how: str) -> tuple[int, int]:
        told = subprocess.run([sys.executable, "-c", PEAK, how], capture_output=True, text=True, check=True).stdout
        apart, arenas = map(int, told.split())
        return apart, arenas

    apart, arenas = behind_a_peak("returned")
    assert apart == 1 and arenas <= 2
    apart, arenas = behind_a_peak("kept")
    assert apart == 0 and arenas > 2, "else nothing is gained"
