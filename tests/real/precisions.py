"""This table bounds what each precision may lose on the catalogue's first model, against the same weights in fp32.

The bounds lie a little above what is measured; a mistake in a kernel or a conversion moves these figures by factors.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bound:
    """The most mean change of a true token's log-probability, the least share of positions with the same likeliest
    token, the most change of perplexity, and the most KL divergence in nats."""

    logprob_change: float
    top_1: float
    perplexity: float
    kl: float


BOUNDS: dict[str, Bound] = {
    "fp32": Bound(0.01, 0.99, 0.0015, 0.0002),  # an import of a GGUF file rounds its weights to bf16
    "bf16": Bound(0.02, 0.985, 0.003, 0.0005),
    "int8": Bound(0.08, 0.95, 0.01, 0.0055),
    "file": Bound(0.075, 0.955, 0.01, 0.004),
    "int8-weight": Bound(0.05, 0.965, 0.005, 0.002),
    "llm-int8": Bound(0.15, 0.91, 0.02, 0.02),
    "int4": Bound(0.26, 0.84, 0.08, 0.07),
}
OF_FILE = ("fp32", "bf16", "file")
"""Made of the file itself; the others of the bf16 version."""
SERVED = tuple(precision for precision in BOUNDS if precision != "fp32")
DEFAULTS = ("bf16", "int8", "int8-weight", "file")
"""What a plain question is answered by; the others lose more."""
