"""Lines are the requests of a batch's input file. They are read one after the other, so that no file is in memory
whole.

JSON Lines in UTF-8: a byte-order mark at the beginning, CR LF, empty lines and a last line without its end are taken.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

MOST_LINES: Final = 50_000
MOST_ERRORS: Final = 100
MOST_ID_CHARACTERS: Final = 512
_BOM: Final = b"\xef\xbb\xbf"
_ESCAPED_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One request. Its body stays the bytes that the client wrote."""

    custom_id: str
    url: str
    body: msgspec.Raw
    method: str = ""


@dataclass(frozen=True, slots=True)
class Wrong:
    """Why a line cannot be taken: OpenAI's code, a sentence, the field, and the line's number from 1 on."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None

    def shown(self) -> dict[str, Any]:
        return {"code": self.code, "message": self.message, "param": self.param, "line": self.line}


def numbered(path: Path, most_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yields the lines that are not empty, with their numbers from 1 on. A line that is
    too long comes as its first `most_bytes` + 1 bytes, so that its reader can tell."""
    with path.open("rb") as file:
        number, is_tail = 1, False
        while raw := file.readline(most_bytes + 1):
            if number == 1 and not is_tail:
                raw = raw.removeprefix(_BOM)
            if not is_tail and (text := raw if len(raw) > most_bytes else raw.strip()):
                yield number, text
            is_tail = not raw.endswith(b"\n")
            number += not is_tail


def parsed(raw: bytes) -> Line:
    """Returns the line. Raises ValueError with a sentence."""
    try:
        try:
            return msgspec.json.decode(raw, type=Line)
        except msgspec.DecodeError:
            if not _ESCAPED_SURROGATE.search(raw):
                raise
            return _with_any_text(raw)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _with_any_text(raw: bytes) -> Line:
    """Returns a line whose body holds half of a surrogate pair, as a text has that was cut inside an emoji: its route
    refuses the body, and the batch goes on. Raises DecodeError for such a half elsewhere."""
    try:
        fields = json.loads(raw)
    except ValueError as error:
        raise msgspec.DecodeError(str(error)) from None
    if not isinstance(fields, dict) or "body" not in fields:
        return msgspec.json.decode(raw, type=Line)  # says what is missing, or where the half is
    body = msgspec.Raw(json.dumps(fields["body"]).encode())
    line = msgspec.json.decode(json.dumps({**fields, "body": None}).encode(), type=Line)
    return msgspec.structs.replace(line, body=body)


def read(raw: bytes, number: int, most_bytes: int) -> Line | Wrong:
    """Returns the line, or why it is none."""
    if len(raw) > most_bytes:
        text = f"This line is larger than {most_bytes} bytes: send less, or set DOSIRAK_MAX_BODY_BYTES higher"
        return Wrong("line_too_large", text, None, number)
    try:
        return parsed(raw)
    except ValueError as error:
        return Wrong("invalid_json_line", f"This line is no request: {error}", None, number)


def check(path: Path, endpoint: str, most_line_bytes: int) -> tuple[int, list[Wrong]]:
    """Returns the number of requests in a file, and what is wrong with its lines: MOST_ERRORS of them at most. Memory
    holds the custom ids, and of the file one line."""
    ids, wrong, total = set[str](), list[Wrong](), 0
    for number, raw in numbered(path, most_line_bytes):
        total += 1
        if total > MOST_LINES:
            return total, [Wrong("too_many_tasks", f"A batch has at most {MOST_LINES} requests: send it in parts")]
        found = _wrong(raw, number, endpoint, most_line_bytes, ids)
        if found is not None:
            wrong.append(found)
            if len(wrong) == MOST_ERRORS:
                break
    if not total:
        wrong = [Wrong("empty_file", "The file has no request: write one JSON object a line")]
    return total, wrong


def _wrong(raw: bytes, number: int, endpoint: str, most_bytes: int, ids: set[str]) -> Wrong | None:
    line = read(raw, number, most_bytes)
    if isinstance(line, Wrong):
        return line
    if line.method != "POST":
        return Wrong("invalid_method", "`method` must be POST", "method", number)
    if line.url != endpoint:
        return Wrong("mismatched_url", f"`url` must be the batch's endpoint, {endpoint}", "url", number)
    if not bytes(line.body).startswith(b"{"):
        return Wrong("invalid_body", "`body` must be a JSON object", "body", number)
    if not 0 < len(line.custom_id) <= MOST_ID_CHARACTERS:
        text = f"`custom_id` must have 1 to {MOST_ID_CHARACTERS} characters"
        return Wrong("invalid_custom_id", text, "custom_id", number)
    if line.custom_id in ids:
        return Wrong("duplicate_custom_id", "`custom_id` must be another one in every line", "custom_id", number)
    ids.add(line.custom_id)
    return None
