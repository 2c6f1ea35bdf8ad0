"""This module reads an upload: a multipart form whose one file goes to the disk as it comes, bounded, never whole in
memory.

RFC 7578. Compressed bodies, encoded parts and compressed files are refused: their size says nothing of their content.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from fastapi import Request
from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

from service.errors import InvalidRequest, UnsupportedMediaType
from service.storage.files.files import Files, Receiving
from service.storage.sessions import check_filename

FILE: Final = "file"
MOST_FIELDS: Final = 8
MOST_FIELD_BYTES: Final = 1024
WRITE_BYTES: Final = 1024 * 1024
COMPRESSED: Final = (b"\x1f\x8b", b"PK\x03\x04", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ\x00", b"7z\xbc\xaf")
"""How gzip, zip, zstd, bzip2, xz and 7z begin."""
LONGEST_MARK: Final = max(map(len, COMPRESSED))


@dataclass(slots=True)
class Form:
    """The fields of a form, and the name of its file; "" where there is none."""

    fields: dict[str, str] = field(default_factory=dict)
    filename: str = ""


async def read_form(request: Request, files: Files, receiving: Receiving) -> Form:
    """Returns the form; its file is in `receiving`. Raises UnsupportedMediaType, TooLarge, StorageFull,
    InvalidRequest."""
    reader = _Reader(_boundary(request))
    size, waiting = 0, bytearray()
    async for chunk in request.stream():
        size += len(chunk)
        files.check_declared(size)
        waiting += reader.read(chunk)
        if len(waiting) >= WRITE_BYTES:
            await receiving.write(bytes(waiting))
            waiting.clear()
    reader.check_end()
    if waiting:
        await receiving.write(bytes(waiting))
    return reader.form


def declared_bytes(request: Request) -> int:
    """Returns the size that the request declares; 0 where it declares none."""
    declared = request.headers.get("content-length", "")
    return int(declared[:20]) if declared.isdecimal() else 0


def _boundary(request: Request) -> bytes:
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if kind != b"multipart/form-data" or not 0 < len(options.get(b"boundary", b"")) <= 70:
        raise UnsupportedMediaType("Send a form with the header Content-Type: multipart/form-data; boundary=…")
    if request.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise UnsupportedMediaType("Compressed bodies are not read: send the form without Content-Encoding")
    return options[b"boundary"]


class _Reader:
    """Takes the parser's calls, in order, and keeps the file's bytes of one chunk."""

    def __init__(self, boundary: bytes) -> None:
        self.form = Form()
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._part_begins,
                "on_header_field": self._header_name,
                "on_header_value": self._header_value,
                "on_header_end": self._header_ends,
                "on_headers_finished": self._headers_end,
                "on_part_data": self._data,
                "on_part_end": self._part_ends,
                "on_end": self._end,
            },
        )
        self._headers: dict[bytes, bytes] = {}
        self._header, self._value = b"", b""
        self._name = ""
        self._text = bytearray()
        self._file = bytearray()
        self._beginning = bytearray()
        self._ended = False

    def read(self, chunk: bytes) -> bytes:
        """Returns the bytes of the file in a chunk of the body."""
        try:
            self._parser.write(chunk)
        except MultipartParseError as error:
            raise InvalidRequest(f"The form is not multipart/form-data: {error}") from None
        found, self._file = bytes(self._file), bytearray()
        return found

    def check_end(self) -> None:
        """Raises InvalidRequest where the form is not whole."""
        if not self._ended:
            raise InvalidRequest("The form ends in the middle: its last boundary is missing")
        if not self.form.filename:
            raise InvalidRequest("`file` is missing: add a part with a file name", param=FILE)

    def _part_begins(self) -> None:
        self._headers, self._text = {}, bytearray()

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_ends(self) -> None:
        self._headers[self._header.lower()] = self._value
        self._header, self._value = b"", b""

    def _headers_end(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        self._name = options.get(b"name", b"").decode(errors="replace")
        if self._headers.get(b"content-transfer-encoding", b"binary").strip().lower() not in (
            b"binary",
            b"8bit",
            b"7bit",
        ):
            raise InvalidRequest("Encoded parts are not read: send the file as it is", param=self._name[:80])
        if self._name == FILE:
            if self.form.filename:
                raise InvalidRequest("`file` is there twice: send one file", param=FILE)
            self.form.filename = _filename(options.get(b"filename", b""))
        elif self._name in self.form.fields or len(self.form.fields) >= MOST_FIELDS:
            raise InvalidRequest(
                f"`{self._name[:80]}` is one field too many: send each field once", param=self._name[:80]
            )

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._name != FILE:
            self._text += data[start:end]
            if len(self._text) > MOST_FIELD_BYTES:
                raise InvalidRequest(
                    f"`{self._name[:80]}` is longer than {MOST_FIELD_BYTES} bytes", param=self._name[:80]
                )
            return
        self._file += data[start:end]
        if len(self._beginning) < LONGEST_MARK:
            self._beginning += data[start : min(end, start + LONGEST_MARK)]
            if bytes(self._beginning).startswith(COMPRESSED):
                raise InvalidRequest("`file` is compressed: unpack it and send the lines themselves", param=FILE)

    def _part_ends(self) -> None:
        if self._name == FILE:
            return
        try:
            self.form.fields[self._name] = self._text.decode()
        except UnicodeDecodeError:
            raise InvalidRequest(f"`{self._name[:80]}` is not UTF-8", param=self._name[:80]) from None

    def _end(self) -> None:
        self._ended = True


def _filename(raw: bytes) -> str:
    """Returns the name without directories, which say something of the client's machine."""
    name = raw.decode(errors="replace").replace("\\", "/").rsplit("/", 1)[-1]
    check_filename(name)
    return name
