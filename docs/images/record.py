"""This script records the README's first screen: a real `dosirak serve` and a real `dosirak chat`, in a terminal of
126 columns, as one SVG. Run it from the project's root: `python docs/images/record.py`.

A terminal emulator reads what the commands print, so the picture shows what a person sees, spinners and colours
included. The SVG names no font of another server.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Final

import pyte
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.terminal import Terminal

COLUMNS: Final = 126
ROWS: Final = 120
PICTURE: Final = Path(__file__).with_name("first-minutes.svg")
SAID: Final = tuple(sys.argv[1:]) or ("What is the capital of France?", "And of Italy?")
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


class Screen:
    """What a person sees of one command: a terminal emulator reads all that the command printed."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.terminal = Terminal(command, variables=environment, size=(ROWS, COLUMNS))
        self._emulated = pyte.Screen(COLUMNS, ROWS)
        self._stream, self._read = pyte.Stream(self._emulated), 0

    def until(self, seen: Callable[[str], bool]) -> None:
        """Reads what the command prints until `seen` is true of the screen's text. Raises TimeoutError."""
        deadline = time.monotonic() + LONGEST_SECONDS
        while not seen(self._text()):
            if time.monotonic() > deadline or self.terminal.process.poll() is not None:
                raise TimeoutError(self._text())
            time.sleep(0.1)

    def settle(self, seconds: float = 1.5) -> None:
        """Reads until the command has printed nothing for `seconds`."""
        printed = -1
        while printed != len(self.terminal.shown):
            printed = len(self.terminal.shown)
            time.sleep(seconds)
        self._text()

    def type(self, line: str) -> None:
        self.terminal.type(f"{line}\n")

    def end(self) -> None:
        os.killpg(self.terminal.process.pid, signal.SIGTERM)
        self.terminal.wait()

    def _text(self) -> str:
        shown = self.terminal.shown
        self._stream.feed(shown[self._read :])
        self._read = len(shown)
        return "\n".join(line for line in self._emulated.display if line.strip())

    def text(self) -> Text:
        """Returns the screen up to its last line that is not empty."""
        lines = [self._line(row) for row in range(ROWS)]
        while lines and not lines[-1].plain.strip():
            lines.pop()
        return Text("\n").join(lines)

    def _line(self, row: int) -> Text:
        cells = [self._emulated.buffer[row][column] for column in range(COLUMNS)]
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
    terminal = Screen(["dosirak", "serve"], environment)
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
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "TERM": "xterm-256color",
            "COLUMNS": "",
            "DOSIRAK_DATA_DIR": data,
            "DOSIRAK_DEFAULT_MODEL": "",
        }
        with _server(environment) as server:
            chat = Screen(["dosirak", "chat"], environment)
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
