"""A trial compiles grammars that clients sent, each in a process of its own: `python -m service.text.grammars.trial`.

Requests and verdicts are frames on standard input and output: 4 bytes of length, then UTF-8. A request is two frames,
the grammar and the text that the answer goes on from. A verdict is "" for a grammar that an engine may compile, else
the reason why not. A grammar that takes more than CPU_SECONDS or MORE_MEMORY
ends its own process only. The main process ends when standard input does, or where there is no verdict.

A JSON schema that needs itself inside of itself has no value that ends, and its answer would go on up to its limit:

    {"properties": {"next": {"$ref": "#"}}, "required": ["next"]}      needs itself without end
    {"properties": {"next": {"$ref": "#"}}}                            ends where `next` is left out
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Final

from service.text.grammars.matching import VocabularyGrammars
from service.text.grammars.unions import pointed

CPU_SECONDS: Final = 0.12
MORE_MEMORY: Final = 128 * 1024 * 1024
STACK: Final = 1024 * 1024  # half of what an engine's threads have at least: what fits here does not overflow there
_LONGEST_SECONDS: Final = 5.0
_NICENESS: Final = 5  # running answers first
_TOO_LONG: Final = f"it takes more than {CPU_SECONDS * 1000:.0f} ms to compile: make it smaller"
_TOO_LARGE: Final = f"it takes more than {MORE_MEMORY >> 20} MiB to compile: make it smaller"
_TOO_DEEP: Final = "it is nested too deep, or too long, to compile: make it smaller"
_REASONS: Final = {
    signal.SIGPROF: _TOO_LONG,
    signal.SIGABRT: _TOO_LARGE,
    signal.SIGSEGV: _TOO_DEEP,
}
_COMPILERS_OPTION: Final = "coerce_one_of"
_MAY_OVERLAP: Final = (
    "a value may fit two options of a `oneOf`: write `anyOf`, or give a required property of each object a string of "
    "its own"
)
_OTHER_TYPES: Final = frozenset({"null", "boolean", "integer", "number", "string"})


def read_frame(stream: BinaryIO) -> str | None:
    """Returns the next frame's text; None at the end of the stream."""
    header = stream.read(4)
    if len(header) < 4:
        return None
    return stream.read(int.from_bytes(header, "big")).decode()


def frame(text: str) -> bytes:
    body = text.encode()
    return len(body).to_bytes(4, "big") + body


def tried(grammars: VocabularyGrammars, text: str, begun: str = "") -> str | None:
    """Compiles a grammar in a process of its own, and follows it through `begun`. Returns the verdict; None where that
    process was killed, or got too little of the processor: that says nothing of the grammar."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reads)
        _compile(grammars, text, begun, writes)
    os.close(writes)
    ready = select.select([reads], [], [], _LONGEST_SECONDS)[0]
    said = os.read(reads, 1 << 16) if ready else b""
    os.close(reads)
    if not said:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if said:
        return said[1:].decode(errors="replace")
    return _REASONS.get(signal.Signals(os.WTERMSIG(status))) if os.WIFSIGNALED(status) else _TOO_LARGE


def _compile(grammars: VocabularyGrammars, text: str, begun: str, writes: int) -> None:
    """Writes "+" or "-" with the reason, and ends the process."""
    try:
        _limit()
        matcher = grammars.compile(text)
        require_end(text)
        if begun and not matcher.consume_tokens(grammars.tokens(begun)):
            raise ValueError("the text that the answer goes on from begins no answer that it allows")
        if begun and matcher.is_stopped():
            raise ValueError("the text that the answer goes on from is already whole")
        verdict = "+"
    except ValueError as error:
        verdict = f"-{_MAY_OVERLAP if _COMPILERS_OPTION in str(error) else error}"
    except BaseException as error:
        verdict = f"-it could not be compiled: {type(error).__name__}"
    with suppress(OSError):  # nobody reads it any more
        os.write(writes, verdict.encode(errors="replace")[: 1 << 16])
    os._exit(0)


def _limit() -> None:
    for number in (signal.SIGPROF, signal.SIGABRT):
        signal.signal(number, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_STACK, (STACK, STACK))
    used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + MORE_MEMORY, used + MORE_MEMORY))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what a failed allocation or a panic prints
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)


def require_end(text: str) -> None:
    """Raises ValueError for a grammar that is a JSON schema without a value that ends."""
    if '"$ref"' not in text or not text.startswith("{"):
        return
    for definition in json.loads(text)["grammars"]:
        schema = definition.get("json_schema")
        if schema is not None and not _Ends(schema).has_end():
            raise ValueError("no answer of it could end: it needs itself without end; make a part of it optional")


class _Ends:
    """What is known of a schema and those in it: those that surely have a value that ends. More become known in each
    round, until a round finds no more."""

    def __init__(self, schema: Any) -> None:
        self._top = schema
        self._known: set[int] = set()
        self._open = list(_nodes(schema))[::-1]  # what is inside of another comes first

    def has_end(self) -> bool:
        num_open = 0
        while num_open != len(self._open):
            num_open = len(self._open)
            self._open = [node for node in self._open if not self._learns(node)]
        return self._is_known(self._top)

    def _learns(self, schema: dict[str, Any]) -> bool:
        if self._ends(schema):
            self._known.add(id(schema))
        return id(schema) in self._known

    def _is_known(self, schema: Any) -> bool:
        return schema is True or (schema is not False and id(schema) in self._known)

    def _ends(self, schema: dict[str, Any]) -> bool:
        if "const" in schema or "enum" in schema:
            return True
        if "$ref" in schema and not self._is_known(pointed(self._top, schema["$ref"])):
            return False
        if not all(map(self._is_known, schema.get("allOf", ()))):
            return False
        if not all(any(map(self._is_known, schema[word])) for word in ("anyOf", "oneOf") if word in schema):
            return False
        types = schema.get("type", ("null",))
        types = {types} if isinstance(types, str) else set(types)
        if types & _OTHER_TYPES:
            return True
        return ("object" in types and self._object_ends(schema)) or ("array" in types and self._array_ends(schema))

    def _object_ends(self, schema: dict[str, Any]) -> bool:
        named, other = schema.get("properties", {}), schema.get("additionalProperties", True)
        patterns = list(schema.get("patternProperties", {}).values())
        needed = [named.get(name, [*patterns, other]) for name in schema.get("required", ())]
        return all(
            any(map(self._is_known, each)) if isinstance(each, list) else self._is_known(each) for each in needed
        )

    def _array_ends(self, schema: dict[str, Any]) -> bool:
        items = schema.get("items", True)
        first, rest = (items, schema.get("additionalItems", True)) if isinstance(items, list) else ([], items)
        first = schema.get("prefixItems", first)
        least = int(schema.get("minItems", 0))
        return all(map(self._is_known, first[:least])) and (least <= len(first) or self._is_known(rest))


def _nodes(value: Any) -> Iterator[dict[str, Any]]:
    """Yields every object in a JSON value, those that are no schemas too: nothing refers to them."""
    if isinstance(value, dict):
        yield value
        for each in value.values():
            yield from _nodes(each)
    elif isinstance(value, list):
        for each in value:
            yield from _nodes(each)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(_NICENESS)
    grammars = VocabularyGrammars.of_letters()
    grammars.compile('start: "a"')  # what the first compilation sets up
    while (text := read_frame(sys.stdin.buffer)) is not None:
        verdict = tried(grammars, text, read_frame(sys.stdin.buffer) or "")
        if verdict is None:
            return
        sys.stdout.buffer.write(frame(verdict))
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
