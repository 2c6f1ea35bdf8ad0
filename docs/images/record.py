"""This script records the README's first screen: a real `dosirak serve` and a real `dosirak chat`, in a terminal of
126 columns, as one SVG. Run it from the project's root: `python docs/images/record.py`.

A terminal emulator reads what the commands print, so the picture shows what a person sees, spinners and colours
included. The SVG names no font of another server.
"""

from __future__ import annotations

import io
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from fcntl import ioctl
from itertools import groupby
from pathlib import Path
from termios import TIOCSWINSZ
from typing import Final

import pyte
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

COLUMNS: Final = 126
ROWS: Final = 120
PICTURE: Final = Path(__file__).with_name("first-minutes.svg")
SAID: Final = tuple(sys.argv[1:]) or ("안녕하세요", "제 이름은 김하린이에요.", "제 이름이 뭐예요?")
LONGEST_SECONDS: Final = 300.0
SVG: Final = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, "D2Coding", "Noto Sans Mono CJK KR", monospace;
  font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font-size: 16px; font-family: system-ui, sans-serif; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
"""


class Terminal:
    """One command in a pseudo-terminal, and the screen that a person would see."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self.screen)
        self._owner, inner = pty.openpty()
        ioctl(inner, TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.process = subprocess.Popen(
            command, stdin=inner, stdout=inner, stderr=inner, env=environment, start_new_session=True
        )
        os.close(inner)

    def until(self, seen: Callable[[str], bool]) -> None:
        """Reads what the command prints until `seen` is true of the screen's text. Raises TimeoutError."""
        deadline = time.monotonic() + LONGEST_SECONDS
        while not seen("\n".join(self.screen.display)):
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise TimeoutError("\n".join(line for line in self.screen.display if line.strip()))
            if select.select([self._owner], [], [], 0.2)[0]:
                self._stream.feed(os.read(self._owner, 65536))

    def settle(self, seconds: float = 1.5) -> None:
        """Reads until the command has printed nothing for `seconds`."""
        while select.select([self._owner], [], [], seconds)[0]:
            self._stream.feed(os.read(self._owner, 65536))

    def type(self, line: str) -> None:
        os.write(self._owner, line.encode() + b"\n")

    def end(self) -> None:
        os.killpg(self.process.pid, signal.SIGTERM)
        self.process.wait(60)

    def text(self) -> Text:
        """Returns the screen up to its last line that is not empty."""
        lines = [self._line(row) for row in range(ROWS)]
        while lines and not lines[-1].plain.strip():
            lines.pop()
        return Text("\n").join(lines)

    def _line(self, row: int) -> Text:
        cells = [self.screen.buffer[row][column] for column in range(COLUMNS)]
        line = Text()
        for style, group in groupby(cells, key=lambda cell: (cell.fg, cell.bold, cell.italics)):
            colour, bold, italic = style
            line.append("".join(cell.data for cell in group), Style(color=_colour(colour), bold=bold, italic=italic))
        line.rstrip()
        return line


def _colour(name: str) -> str | None:
    if name == "default":
        return None
    return f"#{name}" if len(name) == 6 and all(each in "0123456789abcdef" for each in name) else _NAMES.get(name, name)


_NAMES: Final = {"brown": "yellow", **{f"bright{name}": f"bright_{name}" for name in ("red", "green", "blue", "black")}}


@contextmanager
def _server(environment: dict[str, str]):  # type: ignore[no-untyped-def]
    terminal = Terminal(["dosirak", "serve"], environment)
    try:
        terminal.until(lambda text: "Ctrl-C" in text)
        terminal.settle()
        yield terminal
    finally:
        terminal.end()


def record() -> Text:
    """Returns what the two commands show. Port 3000 must be free, for the picture shows it."""
    with tempfile.TemporaryDirectory() as data:
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "TERM": "xterm-256color",
            "DOSIRAK_DATA_DIR": data,
        }
        with _server(environment) as server:
            chat = Terminal(["dosirak", "chat"], environment)
            chat.until(lambda text: "Ctrl-D leaves" in text)
            for number, line in enumerate(SAID, start=1):
                chat.settle()
                chat.type(line)
                chat.until(lambda text, number=number: text.count("reserved") >= number)  # type: ignore[misc]
            chat.settle()
            shown = Text("$ make serve\n").append_text(server.text())
            shown.append("\n\n$ dosirak chat\n").append_text(chat.text())
            chat.end()
    return shown


def main() -> None:
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(record(), no_wrap=True, crop=True)
    drawn = console.export_svg(title="dosirak", theme=SVG_EXPORT_THEME, code_format=SVG, unique_id="dosirak")
    PICTURE.write_text(drawn)
    print(f"{PICTURE}: {PICTURE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
