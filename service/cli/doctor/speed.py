"""The speed to expect of a model on a host, by arithmetic on what was measured. It knows no tensors and measures
nothing.

A step in which B sequences decode, each behind c tokens of context, takes

    step(B, c) = E(B) + L · (o + v(B) · B · e) + W · 2 B / R(B) + B c K / M + A(B c)

and a prompt of n tokens, in steps of at most N tokens, of which one row reads the head,

    prefill(n) = ceil(n / N) · (E(1) + L o) + n L v(P) e + (n L w / R(P) + H / R(1)) · 2 + A(n (n + 1) / 2)

    W weights of all products = L · w of the layers + H of the head    e  elements of a row between a layer's products
      (the head of a 4-bit version has 8 bits and the rate of 8 bits)
    R(B) measured rate of products for B rows, in the precision        P  rows of the measured prefill
    K  bytes of one token's keys and values in all layers              M  measured memory read
    A(p) = 4 p · L · heads · head_dim / F   query-key pairs p, two products each, F = the fp32 rate for many rows
    E(B), o, v(B): the engine's own time, a layer's, and an element's, measured on narrow models (`measured`)

The rate for few rows is measured on weights that no cache holds, so it is what memory gives: W · 2 B / R(B) is at least
the weights' bytes / M. Q requests of a prompt p and an answer of a tokens, all at once, then give

    tokens a second = Q a / (prefill of Q prompts in ceil(Q p / N) steps + (a - 1) · step(Q, p + a / 2))

which is what `make bench` calls tok/s at 1, 8 and 32: p = 128, a = 64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from models.weights.shapes import Shape
from service.evaluation.host.measured import Measured

PROMPT: Final = 128
ANSWER: Final = 64
LONG_PROMPT: Final = 1024


@dataclass(frozen=True, slots=True)
class Speed:
    """Forecasts for one shape in one precision. `step_tokens` is the most tokens of a step, `kv_bytes` the bytes of one
    token's keys and values."""

    measured: Measured
    shape: Shape
    precision: str
    kv_bytes: float
    step_tokens: int

    def step(self, sequences: int, context: float) -> float:
        """Returns the seconds of a step in which so many sequences decode behind `context` tokens each."""
        shape, engine = self.shape, self.measured.engine
        layer = engine.layer + self._value(sequences) * sequences * shape.row_values
        layers = shape.layers * shape.layer_weights / self._rate(sequences)
        products = 2e-9 * sequences * (layers + shape.head_weights / self._head_rate(sequences))
        read = sequences * context * self.kv_bytes / (self.measured.memory_read_gb_s * 1e9)
        return engine.step[sequences] + shape.layers * layer + products + read + self._attention(sequences * context)

    def prefill(self, tokens: int) -> float:
        """Returns the seconds from a prompt's first step to its first token, alone."""
        return self._constant * -(-tokens // self.step_tokens) + self._rows(tokens)

    def tokens_per_second(self, requests: int, prompt: int = PROMPT, answer: int = ANSWER) -> float:
        """Returns the output tokens a second of so many requests that arrive at once."""
        steps = -(-requests * prompt // self.step_tokens)
        prompts = self._constant * steps + requests * self._rows(prompt)
        return requests * answer / (prompts + (answer - 1) * self.step(requests, prompt + answer / 2))

    @property
    def _constant(self) -> float:
        return self.measured.engine.step[1] + self.shape.layers * self.measured.engine.layer

    def _rows(self, tokens: int) -> float:
        shape, most = self.shape, self._most_rows
        layers = tokens * shape.layers * shape.layer_weights / self._rate(most)
        products = layers + shape.head_weights / self._head_rate(1)
        values = tokens * shape.layers * self._value(most) * shape.row_values
        return 2e-9 * products + values + self._attention(tokens * (tokens + 1) / 2)

    @property
    def _most_rows(self) -> int:
        return max(self.measured.products[self.precision])

    def _rate(self, rows: int) -> float:
        return self.measured.products[self.precision][rows]

    def _head_rate(self, rows: int) -> float:
        return self.measured.products["int8" if self.precision == "int4" else self.precision][rows]

    def _value(self, rows: int) -> float:
        return self.measured.engine.value[rows]

    def _attention(self, pairs: float) -> float:
        rate = self.measured.products["fp32"][self._most_rows]
        return 4e-9 * pairs * self.shape.layers * self.shape.attention_width / rate
