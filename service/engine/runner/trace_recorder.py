"""A trace recorder records torch's operators, spans and the native decoder's phases, and writes them as files.

    piece-0000.json    torch's trace in Chrome's format
    piece-0000.marks   the native decoder's phases: a line of JSON with their names, then pairs of int64 (see `marks`)

It knows no steps of a profile, and no operators by name. torch records the thread that begins and ends a piece; kernels
of a GPU are recorded too. The profiler is `torch.autograd.profiler`: `torch.profiler`'s own class, around the same one,
imports 800 modules at its first start, which would hold running answers up for two seconds.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from collections.abc import Sequence as Seq
from pathlib import Path

import torch
from torch._C._profiler import _RecordFunctionFast as record_function  # 2 us of a step; the public one takes 21
from torch.autograd.profiler import profile

from service.engine.protocol.profiling import NamedPart, Span
from service.engine.runner.native.library import Library
from service.engine.runner.native.marks import PHASES, Marks


class TraceRecorder:
    """`engine.protocol.profiling.Recorder` by torch's profiler. The kind `memory` also records allocations, `stacks`
    Python's calls."""

    def __init__(self, kind: str, device: torch.device, parts: Seq[NamedPart], kernels: Library | None) -> None:
        """`parts` are the runner's; those of the native kernels, if there are any, are added."""
        self.span: Span = record_function
        self.parts = (*parts, *(kernels.parts if kernels else ()))
        self._new: Callable[[], profile] = lambda: profile(
            use_device="cuda" if device.type == "cuda" else None,
            profile_memory=kind == "memory",
            with_stack=kind == "stacks",
            acc_events=False,
        )
        self._kernels = kernels
        self._marks = Marks()
        self._taken = bytearray()
        self._profile: profile | None = None
        self._warm_up()

    def begin(self) -> None:
        """Begins to record."""
        self._marks.take()
        self._set_marks(self._marks)
        self._taken.clear()
        self._profile = self._new()
        self._profile.__enter__()  # type: ignore[no-untyped-call]

    def stepped(self) -> None:
        self._taken += self._marks.take()

    def end(self, piece: Path | None) -> int:
        """As Recorder.end."""
        self._set_marks(None)
        recorded, self._profile = self._profile, None
        if recorded is None:
            return 0
        recorded.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        if piece is None:
            return 0
        trace, marks = piece.with_suffix(".json"), piece.with_suffix(".marks")
        marks.write_bytes(json.dumps(PHASES).encode() + b"\n" + self._taken)
        recorded.export_chrome_trace(str(trace))  # type: ignore[no-untyped-call]
        return trace.stat().st_size + len(self._taken)

    def _set_marks(self, marks: Marks | None) -> None:
        if self._kernels is not None:
            self._kernels.marks = marks

    def _warm_up(self) -> None:
        """Makes what torch makes at its first use, outside of the steps that are measured."""
        warming = self._new()
        with warming, self.span("dosirak::warm_up"):
            torch.empty(0)
