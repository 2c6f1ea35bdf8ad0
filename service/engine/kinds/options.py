"""The options of an engine that a deployment names in `engine_options`: their limits, and how they go together.

This module knows names and numbers. It starts no engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from service.errors import InvalidRequest, UnsupportedField

DOSIRAK: Final = "dosirak"
VLLM: Final = "vllm"
EXECUTOR: Final = "executor"
MP: Final = "mp"
RAY: Final = "ray"
EXECUTORS: Final = (MP, RAY)


class Option(NamedTuple):
    """The least, the most and the default of an engine's option."""

    least: int
    most: int
    default: int


OPTIONS: Final[Mapping[str, Mapping[str, Option]]] = MappingProxyType(
    {
        DOSIRAK: {},
        VLLM: {
            "tensor_parallel": Option(1, 64, 1),
            "pipeline_parallel": Option(1, 64, 1),
            "nodes": Option(1, 64, 1),
            "enforce_eager": Option(0, 1, 0),
            "max_loras": Option(0, 64, 0),
            "max_lora_rank": Option(1, 512, 64),
        },
    }
)
_NAMED: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType({DOSIRAK: (), VLLM: (EXECUTOR,)})
"""The options of an engine whose value is a name."""
_LORA_RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The ranks of adapters that vLLM can be started for."""


def resolved(engine: str, options: Mapping[str, int | str]) -> tuple[dict[str, int], str]:
    """Returns the numbers of an engine's options, and its executor. Raises InvalidRequest, which names what there is,
    and UnsupportedField for options that do not go together."""
    numbers = {name: option.default for name, option in OPTIONS[engine].items()}
    executor = MP
    for name, value in options.items():
        if name in _NAMED[engine]:
            executor = _executor(value)
        else:
            numbers[name] = _number(engine, name, value)
    if engine == VLLM:
        _require_together(numbers, executor)
    return numbers, executor


def _number(engine: str, name: str, value: int | str) -> int:
    limit = OPTIONS[engine].get(name)
    if limit is None:
        known = (*OPTIONS[engine], *_NAMED[engine])
        hint = f"there are: {', '.join(known)}" if known else "it has none"
        raise _wrong(f"The engine {engine} has no option {name[:40]!r}; {hint}")
    if not isinstance(value, int) or not limit.least <= value <= limit.most:
        shown = repr(value[:40]) if isinstance(value, str) else value
        raise _wrong(f"`engine_options.{name}` is {shown}; it must be from {limit.least} to {limit.most}")
    return value


def _executor(value: int | str) -> str:
    if isinstance(value, str) and value in EXECUTORS:
        return value
    shown = repr(value[:40]) if isinstance(value, str) else value
    raise _wrong(f"`engine_options.{EXECUTOR}` is {shown}; there are: {', '.join(EXECUTORS)}")


def _require_together(numbers: Mapping[str, int], executor: str) -> None:
    if (rank := numbers["max_lora_rank"]) not in _LORA_RANKS:
        raise _wrong(
            f"`engine_options.max_lora_rank` is {rank}; vLLM takes {', '.join(map(str, _LORA_RANKS))}",
        )
    nodes, ranks = numbers["nodes"], numbers["tensor_parallel"] * numbers["pipeline_parallel"]
    if ranks % nodes:
        raise _wrong(
            f"`engine_options.nodes` is {nodes}, and tensor_parallel · pipeline_parallel is {ranks}: it must be a "
            "multiple of the nodes, which have equally many ranks"
        )
    if nodes > 1 and executor == RAY:
        raise _unsupported(f"Ray finds its hosts itself: leave out `nodes`, or take the executor {MP}")
    if nodes > 1 and numbers["max_loras"]:
        raise _unsupported(
            "An engine of several nodes takes no adapters: leave out `max_loras`, or load it on one host"
        )


def _wrong(sentence: str) -> InvalidRequest:
    return InvalidRequest(sentence, param="engine_options")


def _unsupported(sentence: str) -> UnsupportedField:
    return UnsupportedField(sentence, param="engine_options")
