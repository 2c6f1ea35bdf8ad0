"""A preset is a named recipe: the sizes of the network, the work of a run and how a step divides it."""

from dataclasses import dataclass

from recipe.network import Shape
from recipe.tokenizer import VOCABULARY, WINDOW


@dataclass(frozen=True, slots=True)
class Preset:
    """chunk: rows that are made and sorted together; dialogues: rows of the whole run; replicas: batches a step."""

    shape: Shape
    dialogues: int
    chunk: int
    batch_tokens: int
    replicas: int
    threads: int
    lr: float
    decay: float


PRESETS: dict[str, Preset] = {
    "gpu": Preset(Shape(VOCABULARY, 288, 8, 9, 768, WINDOW), 900_000, 768, 32_768, 1, 2, 3e-3, 0.4),
    "cpu": Preset(Shape(VOCABULARY, 192, 5, 6, 448, WINDOW), 76_800, 96, 1_024, 4, 2, 3e-3, 0.25),
}
