"""A report for tests: figures that pass the gate, unless told otherwise."""

from __future__ import annotations

from typing import Any

import msgspec

from models.manifest import Manifest
from models.repository.report import Comparison, Recalled, Report, Speed, TextPart, TextSet

COMPARED = Comparison("demo:1", "0" * 64, 0.001, 0.0004, 0.97, 0.9, {"1": 1.8, "8": 1.4, "32": 1.1}, 0.995, 0.93)


def beside(parent: Manifest, **changes: Any) -> Comparison:
    """A comparison with `parent`, with these figures changed."""
    return msgspec.structs.replace(COMPARED, reference=parent.reference, digest=parent.digest, **changes)


def report(manifest: Manifest, compared: Comparison | None = COMPARED, losses: tuple[float, ...] = ()) -> Report:
    """`losses`: of texts of 60 tokens each, the same texts in every report."""
    parts = tuple(TextPart(f"{at:016}", 60, loss) for at, loss in enumerate(losses))
    return Report(
        digest=manifest.digest,
        created_at="2026-11-21T00:00:00.000000Z",
        effort="quick",
        seconds=12.5,
        texts=TextSet("dialogues", f"{len(losses):x}" * 64 if losses else "1" * 64, 2048, parts),
        perplexity=1.25,
        compared=compared,
        speed=Speed("x86_64", 2, 1000, 0.5, 900.0, {"1": 100.0, "8": 400.0, "32": 800.0}),
        recall=(Recalled("1 turn", "test", 9, 10),),
        tools=("torch 2.13.0",),
    )
