"""The rooms of docs/architecture.md: what each may import, and which libraries it alone may import. A new arrow fails
here, so that the shape changes only on purpose."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import takewhile
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCES = sorted(path for package in ("service", "models") for path in (ROOT / package).rglob("*.py"))
FORBIDDEN = {"pickle", "cloudpickle", "marshal", "shelve", "dill"}
ALL = "every room above"


@dataclass(frozen=True)
class Room:
    """A row of the table: a module prefix, the prefixes that it knows, and the libraries that it owns."""

    name: str
    knows: frozenset[str]
    owns: frozenset[str]


def rooms() -> Iterator[Room]:
    """Yields the rows of the tables, in their order. A name in the column `knows` is a room of the same table, of
    `service/`, or of the whole tree; `models` and `engine` are all rooms in them."""
    above = list[str]()
    for part in (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").split("\n### `")[1:]:
        home = part.partition("/`")[0].replace("/", ".")
        for line in part.splitlines():
            if not line.startswith("| `"):
                continue
            path, _, knows, owns = (cell.strip() for cell in line.strip("|").split("|"))
            name = f"{home}.{path.strip('`/').removesuffix('.py').replace('/', '.')}"
            known = above if knows == ALL else [found(each, home, above) for each in words(knows)]
            yield Room(name, frozenset(known), frozenset(words(owns)))
            above.append(name)


def words(cell: str) -> list[str]:
    return re.findall(r"[\w.]+", cell)


def found(name: str, home: str, above: list[str]) -> str:
    """Returns the prefix that a word names. It must stand above: so no arrow goes up."""
    for full in (f"{home}.{name}", f"service.{name}", name):
        if any(within(each, full) for each in above):
            return full
    raise AssertionError(f"{name} does not stand above, in the table of {home}")


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path) for path in SOURCES}


@cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text())))


@cache
def imports(path: Path) -> set[str]:
    """Every module that `path` imports, at the top or inside a function."""
    names = set[str]()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                names.add(full if full in MODULES else node.module)
    return names


def within(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(prefix + ".")


def outside(modules: Iterable[str], homes: tuple[str, ...]) -> list[str]:
    return [module for module in modules if not any(within(module, home) for home in homes)]


def nobody(found: Iterable[str], rule: str) -> None:
    """Fails with all that were found."""
    offenders = sorted(found)
    assert not offenders, "\n".join((rule, *offenders))


ROOMS = {room.name: room for room in rooms()}


def room_of(module: str) -> str:
    """Returns the innermost room of a module; "" for the packages around rooms, which hold no more than a version."""
    return max((name for name in ROOMS if within(module, name)), key=len, default="")


def arrows() -> Iterator[tuple[str, str]]:
    """Yields each import of ours: the module, and what it imports."""
    for path in SOURCES:
        for name in imports(path):
            if name.split(".")[0] in ("service", "models"):
                yield module_name(path), name


def knows(room: Room, other: str) -> bool:
    """The demo model is known where it is named itself: nothing that serves needs it."""
    return any(other == name or (within(other, name) and other != "models.demo") for name in room.knows)


def test_arrows_between_rooms() -> None:
    new, used = set(), set()
    for module, target in arrows():
        one, other = room_of(module), room_of(target)
        if other and one != other:
            used |= {(one, name) for name in ROOMS[one].knows if within(other, name)}
            if not knows(ROOMS[one], other):
                new.add(f"{module} → {target}")
    nobody(new, "new arrows")
    named = {(room.name, name) for room in ROOMS.values() for name in room.knows if room.name != "service.app"}
    nobody((f"{one} → {name}" for one, name in named - used), "arrows of the table that no import needs")


def test_nothing_imports_itself_by_way_of_others() -> None:
    """In each folder no entry, a module or a folder, reaches itself."""
    folders: dict[str, dict[str, set[str]]] = {}
    for module, target in arrows():
        if target in MODULES and target != module:
            around = common(module, target)
            one, other = (entry(each, around) for each in (module, target))
            folders.setdefault(around, {}).setdefault(one, set()).add(other)
    for graph in folders.values():
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            raise AssertionError(" → ".join(error.args[1])) from None


def common(one: str, other: str) -> str:
    """Returns the innermost package around two modules."""
    pairs = zip(one.split("."), other.split("."), strict=False)
    return ".".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def entry(module: str, package: str) -> str:
    """Returns the entry of a package that a module lies in; the package's own module is one as well."""
    rest = module.removeprefix(package).lstrip(".").split(".")[0]
    return f"{package}.{rest or '__init__'}".lstrip(".")


def test_every_module_has_a_room() -> None:
    nobody((module for module in MODULES if not room_of(module) and module.count(".") > 1), "modules without a room")


def test_the_tables_name_only_rooms_that_exist() -> None:
    nobody((name for name in ROOMS if not any(within(module, name) for module in MODULES)), "rooms that are not there")


def test_libraries_stay_where_they_belong() -> None:
    owned = {library for room in ROOMS.values() for library in room.owns}
    strangers = set()
    for path in SOURCES:
        module = module_name(path)
        for library in {name.split(".")[0] for name in imports(path)} & (owned | FORBIDDEN):
            homes = [ROOMS[name] for name in ROOMS if within(module, name)]
            if not any(library in room.owns for room in homes):
                strangers.add(f"{module} imports {library}")
    nobody(strangers, "libraries have their rooms")


def test_no_dangerous_calls() -> None:
    dangerous = {"eval", "exec", "torch.load", "yaml.load", "yaml.unsafe_load"}
    called = [
        f"{module_name(path)}:{node.lineno} calls {ast.unparse(node.func)}"
        for path in SOURCES
        for node in nodes(path)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in dangerous
    ]
    nobody(called, "code from data")


def test_environment_is_read_in_settings_only() -> None:
    # the second sets one of vLLM's, the third passes on what a child without secrets may have
    homes = {"service.settings", "service.environment", "service.engine.vllm.headless", "models.checkpoint.limited"}
    readers = {
        module_name(path)
        for path in SOURCES
        for node in nodes(path)
        if isinstance(node, ast.Attribute | ast.Name)
        and ast.unparse(node) in {"os.environ", "os.getenv", "environ", "getenv"}
    }
    nobody(readers - homes, "the environment is read in the settings")


SESSION_TABLES = (
    "service.storage.sessions.owned",
    "service.storage.sessions.retention",
    "service.storage.sessions.everyone",  # the worker's batches and the limit of all files: no owner's content
    "service.storage.sessions.usage",  # counts of tokens, which the operator sees: no owner's content
    "service.storage.database.migrations",
)
SESSION_STATEMENTS = (
    *SESSION_TABLES,
    "service.storage.sessions.search",
    "service.storage.database.migrating",
    "service.storage.database.database",
    "service.storage.records",  # of instances: no owner's content
    "service.storage.audit",  # of operators: no owner's content
)


def test_only_owner_bound_statements_reach_the_sessions() -> None:
    """A query that forgets its owner cannot be written by accident: the tables and the words for it are not at hand."""
    tables, reach, build = "service.storage.database.tables", set(), set()
    for path in SOURCES:
        for node in nodes(path):
            if not isinstance(node, ast.ImportFrom):
                continue
            names = {alias.name for alias in node.names}
            if node.module == tables or (f"{node.module}.tables" == tables and "tables" in names):
                reach.add(module_name(path))
            if node.module == "sqlalchemy" and names & {"select", "insert", "update", "delete", "text"}:
                build.add(module_name(path))
    nobody(outside(reach, SESSION_TABLES), "reach the tables")
    nobody(outside(build, SESSION_STATEMENTS), "build statements")


def test_api_process_imports_no_torch() -> None:
    """The whole app is composed without torch or transformers, nor what only a server with sessions needs."""
    unwanted = {
        "torch",
        "transformers",
        "sqlalchemy",
        "obstore",
        "google.protobuf",
        "opentelemetry.sdk",
        "opentelemetry.exporter",
    }
    program = f"import sys, service.app; print(sorted({unwanted} & set(sys.modules)))"
    shown = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_a_vllm_worker_needs_nothing_of_ours_but_msgspec() -> None:
    """In vLLM's interpreter there are no other libraries of this project's, and `models` is not there. `core` is not
    named: it alone imports vLLM."""
    script = (
        "import sys, service.engine.vllm.headless, service.engine.vllm.lines, service.engine.vllm.mapping\n"
        "import service.engine.vllm.rank, service.engine.vllm.ranks, service.engine.vllm.releases\n"
        "import service.engine.vllm.rendezvous, service.engine.vllm.tally, service.engine.vllm.weights\n"
        "import service.engine.vllm.worker, service.engine.process.validation\n"
        "found = {name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names\n"
        "print(*sorted(name for name in found if not name.startswith('_')))"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert set(told.split()) <= {"msgspec", "service", "sitecustomize", "typing_extensions"}


def test_commands_import_neither_torch_nor_the_hubs_library() -> None:
    """So that `dosirak --help`, and a start of a version that is there, are quick."""
    unwanted = {"torch", "transformers", "huggingface_hub"}
    program = f"import sys, service.cli; print(sorted({unwanted} & set(sys.modules)))"
    shown = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_the_engine_process_is_synchronous() -> None:
    waiting = {module_name(path) for path in SOURCES if any(within(name, "asyncio") for name in imports(path))}
    engine = {module for module in waiting if within(module, "service.engine")}
    nobody(outside(engine, ("service.engine.client",)), "asyncio ends at the engine's client")


def test_bento_service_stays_thin() -> None:
    assert len((ROOT / "service" / "bento.py").read_text().splitlines()) < 95


def test_only_one_place_asks_for_answers() -> None:
    """So that no dialect can forget what every answer owes to its client: its key, its headers, its log line."""
    asking = {
        module_name(path)
        for path in SOURCES
        if "api" in path.parts
        for node in nodes(path)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and ast.unparse(node.func).endswith("answers.stream")
    }
    assert asking == {"service.api.answering.responses"}
