"""The size of the house in a few numbers: `python -m tests.size [TREE]`, of this checkout or of another.

A room is an entry of `service/` or `models/`, or of `service/engine/`: a folder or a module. An arrow is a pair of
rooms of which one imports the other. Arrows up run against the order of rooms that has the fewest of them (an order by
Eades, Lin and Smyth 1993, which is the best or near it). A circle is a set of modules that import each other by way of
others.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

Graph = dict[str, set[str]]
CODE = ("service", "models", "recipe", "loadtest", "tests")
DOCUMENTS = ("README", "CONTRIBUTING", "CHANGELOG")


def main() -> None:
    tree = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    for name, value in measured(tree).items():
        print(f"{name:<44} {value:>8,}")


def measured(tree: Path) -> dict[str, int]:
    """Returns the numbers by their names."""
    tracked = [tree / name for name in _output(tree, "git", "ls-files", "-z").split("\0") if name]
    present = [path for path in tracked if path.is_file() and not path.is_symlink()]
    found = dict[str, int]()
    for part in CODE:
        paths = [path for path in present if path.suffix == ".py" and path.is_relative_to(tree / part)]
        found[f"{part}/: lines of Python"] = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)
        found[f"{part}/: files of Python"] = len(paths)
    for part in ("service", "models"):
        entries = {path.relative_to(tree / part).parts[0] for path in present if path.is_relative_to(tree / part)}
        found[f"{part}/: entries at the top"] = len(entries - {"__init__.py"})
    imports = imports_of(tree)
    rooms = joined(imports)
    found["rooms"] = len(rooms)
    found["arrows between rooms"] = sum(map(len, rooms.values()))
    found["arrows up"] = arrows_up(rooms)
    found["circles of modules"] = len(list(circles(imports)))
    found["cases that pytest collects"] = _cases(tree)
    return found | _words(tree, [path.relative_to(tree) for path in present if path.suffix == ".md"])


def _words(tree: Path, pages: list[Path]) -> dict[str, int]:
    """Returns the words of the documents, of the results of measurements, and of what stands beside code. A word holds
    a letter or a digit: the bars of tables are none."""
    found = {"words of documents": 0, "words of results": 0, "words of other Markdown": 0}
    for page in pages:
        of_docs = page.parts[0] == "docs" or (page.name.startswith(DOCUMENTS) and len(page.parts) == 1)
        results = page.is_relative_to("loadtest/results")
        kind = "documents" if of_docs else "results" if results else "other Markdown"
        words = (tree / page).read_text(encoding="utf-8").split()
        found[f"words of {kind}"] += sum(any(map(str.isalnum, word)) for word in words)
    return found


def imports_of(tree: Path) -> Graph:
    """Returns what each module of ours imports of ours, at its top or inside a function."""
    paths = {_module(path.relative_to(tree)): path for part in CODE[:2] for path in sorted((tree / part).rglob("*.py"))}
    graph: Graph = {name: set() for name in paths}
    for name, path in paths.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                graph[name] |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                of = {f"{node.module}.{alias.name}" for alias in node.names} & paths.keys()
                graph[name] |= of or {node.module}
        graph[name] = (graph[name] & paths.keys()) - {name}
    return graph


def joined(imports: Mapping[str, set[str]]) -> Graph:
    """Returns the arrows between rooms."""
    rooms: Graph = {}
    for name, targets in imports.items():
        if "." in name:
            rooms.setdefault(_room(name), set()).update(_room(target) for target in targets if "." in target)
    return {room: targets - {room} for room, targets in rooms.items()}


def arrows_up(rooms: Graph) -> int:
    """Returns the number of arrows against the order that the heuristic finds."""
    left, first, last = {room: set(targets) for room, targets in rooms.items()}, list[str](), list[str]()
    while left:
        into = {room: sum(room in targets for targets in left.values()) for room in left}
        sinks, sources = [r for r in left if not left[r]], [r for r in left if not into[r]]
        taken = (sinks or sources or [max(sorted(left), key=lambda room: len(left[room]) - into[room])])[0]
        (last if sinks else first).append(taken)
        del left[taken]
        for targets in left.values():
            targets.discard(taken)
    place = {room: number for number, room in enumerate([*first, *reversed(last)])}
    return sum(place[target] < place[room] for room, targets in rooms.items() for target in targets)


def circles(graph: Graph) -> Iterator[set[str]]:
    """Yields the sets of modules that reach each other."""
    reached = {name: _reached(graph, name) for name in graph}
    seen = set[str]()
    for name in graph:
        circle = {other for other in reached[name] if name in reached[other]}
        if circle and name not in seen:
            seen |= circle
            yield circle


def _reached(graph: Graph, start: str) -> set[str]:
    found, waiting = set[str](), [start]
    while waiting:
        for target in graph[waiting.pop()] - found:
            found.add(target)
            waiting.append(target)
    return found


def _room(module: str) -> str:
    parts = module.split(".")
    return ".".join(parts[: 3 if parts[:2] == ["service", "engine"] else 2])


def _module(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _cases(tree: Path) -> int:
    said = _output(tree, sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "", "-p", "no:cacheprovider")
    return sum("::" in line for line in said.splitlines())


def _output(tree: Path, *command: str) -> str:
    return subprocess.run(command, cwd=tree, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
