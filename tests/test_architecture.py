"""The allowed imports, drawn. A new arrow fails here, so that the shape changes only on purpose."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCES = sorted(path for package in ("service", "models") for path in (ROOT / package).rglob("*.py"))

# Each part may import itself and the parts named here; a part is the longest prefix that matches a module.
ALLOWED: dict[str, set[str]] = {
    "models": set(),
    "models.demo": {"models"},
    "service.errors": set(),
    "service.cursors": {"service.errors"},
    "service.collector_url": set(),
    "service.origins": set(),
    "service.device_names": set(),
    "service.settings": {
        "models",
        "service.collector_url",
        "service.device_names",
        "service.engines.places",
        "service.origins",
    },
    "service.wrong_settings": {"service.device_names", "service.host", "service.settings"},
    "service.settings_file": {"service.errors", "service.settings"},
    "service.host": set(),
    "service.machine": {"models", "service.host", "service.settings", "service.runner.native.build"},
    "service.tracebacks": set(),
    "service.stopping": set(),
    "service.store_follower": {"models"},
    "service.tracing": set(),
    "service.log_lines": set(),
    "service.logs": {"service.settings", "service.tracebacks", "service.log_lines"},
    "service.tasks": set(),
    "service.child_process": set(),
    "service.engine.work": set(),
    "service.engine.messages": {"service.engine.work"},
    "service.engine.frames": {"service.engine.messages"},
    "service.engine.tally": {"service.engine.sequence"},
    "service.engine.work_done": {"service.engine.tally", "service.engine.work"},
    "service.engine.ngram": set(),
    "service.engine.acceptance": set(),
    "service.engine.token_counts": set(),
    "service.engine.constraint": set(),
    "service.engine.grammar_loading": {"service.engine.constraint", "service.engine.messages"},
    "service.engine.sequence": {
        "service.engine.acceptance",
        "service.engine.constraint",
        "service.engine.messages",
        "service.engine.ngram",
        "service.engine.token_counts",
    },
    "service.engine.batch": {"service.engine.messages", "service.engine.sequence"},
    "service.engine.scheduling.cost": {"service.engine.batch"},
    "service.engine.draft_model": {"service.engine.scheduling.cost", "service.engine.sequence"},
    "service.engine.blocks.eviction": set(),
    "service.engine.blocks.window": set(),
    "service.engine.blocks.offload": {"service.engine.batch", "service.engine.blocks.eviction"},
    "service.engine.blocks.block_manager": {
        "service.engine.batch",
        "service.engine.sequence",
        "service.engine.blocks.eviction",
        "service.engine.blocks.offload",
        "service.engine.blocks.window",
    },
    "service.engine.output_processor": {
        "service.engine.messages",
        "service.engine.batch",
        "service.engine.sequence",
        "service.engine.tally",
        "service.engine.blocks.block_manager",
    },
    "service.engine.scheduling.budget": {"service.engine.scheduling.cost"},
    "service.engine.scheduling.lane": {"service.engine.sequence"},
    "service.engine.scheduling.prefill": {
        "service.engine.messages",
        "service.engine.sequence",
        "service.engine.blocks.block_manager",
        "service.engine.scheduling.budget",
    },
    "service.engine.scheduling.backlog": {
        "service.engine.sequence",
        "service.engine.blocks.block_manager",
        "service.engine.scheduling.batching",
        "service.engine.scheduling.cost",
    },
    "service.engine.scheduling.batching": {"service.engine.scheduling.budget", "service.engine.scheduling.cost"},
    "service.engine.scheduling.speculation": {
        "service.engine.sequence",
        "service.engine.blocks.block_manager",
        "service.engine.scheduling.batching",
        "service.engine.scheduling.cost",
        "service.engine.acceptance",
        "service.engine.constraint",
        "service.engine.draft_model",
        "service.engine.ngram",
    },
    "service.engine.scheduling.scheduler": {
        "service.engine.constraint",
        "service.engine.draft_model",
        "service.engine.messages",
        "service.engine.sequence",
        "service.engine.batch",
        "service.engine.blocks.block_manager",
        "service.engine.scheduling.budget",
        "service.engine.scheduling.batching",
        "service.engine.scheduling.backlog",
        "service.engine.scheduling.lane",
        "service.engine.scheduling.prefill",
        "service.engine.scheduling.speculation",
        "service.engine.output_processor",
    },
    "service.engine.validation": {"service.engine.messages"},
    "service.engine.profiling": {"service.engine.messages"},
    "service.engine.core": {
        "service.engine.constraint",
        "service.engine.grammar_loading",
        "service.engine.validation",
        "service.engine.profiling",
        "service.engine.messages",
        "service.engine.batch",
        "service.engine.blocks.block_manager",
        "service.engine.blocks.window",
        "service.engine.scheduling.cost",
        "service.engine.draft_model",
        "service.engine.scheduling.scheduler",
        "service.engine.work",
        "service.engine.work_done",
    },
    "service.engine": {  # the worker
        "service.child_process",
        "service.engine.frames",
        "service.engine.grammar_loading",
        "service.engine.messages",
        "service.engine.work",
        "service.engine.blocks.block_manager",
        "service.engine.scheduling.batching",
        "service.engine.scheduling.scheduler",
        "service.engine.core",
        "service.engine.profiling",
        "service.engine.blocks.offload",
        "service.runner",
    },
    "service.engine_client": {"service.errors", "service.engine.frames", "service.engine.messages"},
    "service.engines.vllm.releases": set(),
    "service.engines.vllm": {  # in vLLM's interpreter, which has none of this project's libraries
        "service.child_process",
        "service.engine",
        "service.engine.grammar_loading",
        "service.engine.messages",
        "service.engine.profiling",
        "service.engine.scheduling.cost",
        "service.engine.validation",
        "service.engines.places",
        "service.engines.vllm.releases",
        "service.host",
    },
    "service.engines.places": {"service.errors"},
    "service.engines": {
        "models",
        "service.engines.places",
        "service.engines.vllm.releases",
        "service.errors",
        "service.host",
    },
    "service.runner.native.build": set(),
    "service.runner.kv_size": {"service.engine.blocks.window"},
    "service.grammars.matching": set(),
    "service.grammars.ends": set(),
    "service.grammars.trial": {"service.grammars.ends", "service.grammars.matching"},
    "service.grammars": {"service.errors"},
    "service.tools": {"service.errors", "service.grammars", "service.text"},
    "service.reasoning": {"service.errors", "service.text"},
    "service.runner": {
        "service.engine.blocks.window",
        "models",
        "service.errors",
        "service.engine.constraint",
        "service.grammars.matching",
        "service.text",
        "service.runner.native.build",
        "service.runner.kv_size",
        "service.host",
        "service.engine.messages",
        "service.engine.profiling",
        "service.engine.sequence",
        "service.engine.batch",
        "service.engine.draft_model",
        "service.engine.scheduling.cost",
        "service.engine.token_counts",
        "service.engine.work",
    },
    "service.text": {"service.errors", "service.text.arguments"},
    "service.text.arguments": {"service.errors"},
    "service.text.grams": set(),
    "service.text.passages": set(),
    "service.context": {
        "service.errors",
        "service.text",
        "service.text.arguments",
        "service.text.grams",
        "service.text.passages",
        "service.context.partition",
        "service.context.stored_receipt",
    },
    "service.guard": {"service.errors"},
    "service.live.window": set(),
    "service.live.recent": {"service.live.window"},
    "service.metrics": {
        "service.errors",
        "service.engine.messages",
        "service.engine.work",
        "service.live.recent",
    },
    "service.instances": {"models", "service.deployments", "service.records", "service.tasks"},
    "service.inventory": {"service.records", "models", "service.deployments", "service.metrics"},
    "service.live": {
        "service.errors",
        "service.deployments",
        "service.engine.messages",
        "service.engine_client",
        "service.live.recent",
        "service.live.window",
        "service.metrics",
        "service.tasks",
    },
    "service.context.partition": set(),
    "service.context.stored_receipt": {"service.context.partition"},
    "service.sessions": {
        "service.errors",
        "service.cursors",
        "service.text.arguments",  # calls are checked before they are stored
        "service.text.grams",
        "service.text.passages",
        "service.records.tables",  # the migrations compare them
        "service.context.partition",  # receipts are numbers there, and are read as lists
        "service.context.stored_receipt",
    },
    "service.records.tables": set(),
    "service.records": {"models", "service.errors", "service.records.tables", "service.sessions", "service.settings"},
    "service.batches": {
        "models",
        "service.errors",
        "service.files",
        "service.sessions",
        "service.tasks",
    },
    "service.capacity": {"service.answers", "service.batches", "service.deployments"},
    "service.files": {"models", "service.errors", "service.sessions"},
    "service.deployments.memory": set(),
    "service.deployments.activity": set(),
    "service.scenarios": {"service.errors"},
    "service.profiles": {
        "models",
        "service.child_process",
        "service.cursors",
        "service.deployments",
        "service.engine.messages",
        "service.engine_client",
        "service.errors",
        "service.tasks",
    },
    "service.needs": {"models", "service.deployments.memory", "service.runner.kv_size", "service.settings"},
    "service.deployments": {
        "service.deployments.memory",
        "models",
        "service.errors",
        "service.settings",
        "service.engine_client",
        "service.engine.messages",
        "service.engine.scheduling.cost",
        "service.device_names",
        "service.engines",
        "service.engines.places",
        "service.host",
        "service.text",
        "service.tasks",
        "service.deployments.activity",
    },
    "service.doctor.measured": {"models", "service.machine", "service.settings"},
    "service.doctor.measuring": {  # a process of its own, the only part of the doctor with torch behind it
        "service.doctor.measured",
        "service.engine",
        "service.engine.core",
        "service.engine.messages",
        "service.host",
        "service.machine",
        "service.runner",
    },
    "service.doctor": {
        "service.records",
        "models",
        "service.deployments.memory",
        "service.doctor.measured",
        "service.machine",
        "service.needs",
        "service.runner.native.build",
        "service.starting",
        "service.starting.address",
        "service.settings",
    },
    "service.tuning": {
        "models",
        "service.errors",
        "service.settings",
        "service.device_names",
        "service.host",
        "service.machine",
        "service.scenarios",
        "service.text",
        "service.deployments",
        "service.deployments.memory",
        "service.engine_client",
        "service.engine.messages",
        "service.starting",
        "service.starting.address",
    },
    "service.answers": {
        "models",
        "service.errors",
        "service.engine_client",
        "service.engine.messages",
        "service.text",
        "service.text.arguments",
        "service.text.grams",
        "service.text.passages",
        "service.context",
        "service.context.partition",
        "service.context.stored_receipt",
        "service.deployments",
        "service.grammars",
        "service.guard",
        "service.metrics",
        "service.reasoning",
        "service.sessions",
        "service.tasks",
        "service.tools",
    },
    "service.api": {
        "service.instances",
        "models",
        "service.errors",
        "service.cursors",
        "service.settings",
        "service.metrics",
        "service.text",
        "service.text.arguments",
        "service.context",
        "service.deployments",
        "service.answers",
        "service.batches",
        "service.files",
        "service.grammars",
        "service.jobs",
        "service.live",
        "service.profiles",
        "service.reasoning",
        "service.sessions",
        "service.tasks",
        "service.tools",
        "service.machine",
        "service.doctor.measured",
        "service.tracing",
    },
    "service.ui": {"service.api", "service.errors"},  # the routes; a screen itself asks the API over HTTP
    "service.interface": {"service.api"},
    "service.app": {
        "service.interface",
        "service.instances",
        "service.records",
        "models",
        "service.engines",
        "service.engines.places",
        "service.errors",
        "service.settings",
        "service.metrics",
        "service.engine_client",
        "service.engine.messages",
        "service.deployments",
        "service.answers",
        "service.batches",
        "service.capacity",
        "service.files",
        "service.guard",
        "service.host",
        "service.inventory",
        "service.jobs",
        "service.live",
        "service.profiles",
        "service.stopping",
        "service.store_follower",
        "service.api",
        "service.ui",
        "service.sessions",
        "service.logs",
        "service.tasks",
        "service.tracing",
    },
    "service.deferred": set(),
    "service.packaging": {"service.api", "service.errors"},
    "service.bento": {
        "service.app",
        "service.engine_client",
        "service.host",
        "service.settings",
        "service.ui",
        "service.wrong_settings",
        "service.api",
        "service.deferred",
        "service.packaging",
    },
    "service.starting.address": {"service.settings"},
    "service.starting": {
        "models",
        "service.records",
        "service.device_names",
        "service.errors",
        "service.settings",
        "service.starting.address",
    },
    "service.serving": {
        "models",
        "service.records",
        "service.host",
        "service.settings",
        "service.starting",
        "service.starting.address",
    },
    "service.evaluation": {
        "service.records",
        "models",
        "models.demo",
        "service.errors",
        "service.host",  # whether memory holds a version that a calibration runs
        "service.settings",
        "service.engine",
        "service.engine.messages",
        "service.engine.sequence",
        "service.engine.batch",
        "service.engine.core",
        "service.engine.scheduling.scheduler",
        "service.engine.scheduling.cost",
        "service.runner",
        "service.deployments",
        "service.text",
        "service.context",
    },
    "service.jobs": {
        "service.records",
        "models",
        "service.errors",
        "service.settings",
        "service.child_process",
        "service.evaluation",
        "service.runner",  # the memory of the device, for what a checkpoint will need
        "service.needs",
        "service.tasks",
        "service.host",
        "service.deployments.activity",
    },
    "service.cli": {
        "service.records",
        "models",
        "service.errors",
        "service.settings",
        "service.wrong_settings",
        "service.settings_file",
        "service.serving",
        "service.evaluation",
        "service.guard",
        "service.host",
        "service.jobs",
        "service.starting",
        "service.starting.address",
        "service.doctor",
        "service.doctor.measured",
        "service.machine",
        "service.needs",
        "service.scenarios",
        "service.tuning",
        "service.engines",
        "service.engines.places",
        "service.engines.vllm.releases",
        "service.node",
    },
    "service.node": {
        "models",
        "service.engines",
        "service.engines.places",
        "service.engines.vllm",
        "service.errors",
        "service.host",
        "service.records",
        "service.settings",
    },
    "service": set(),
}

# Who alone may import a library: module prefixes.
ONLY: dict[str, tuple[str, ...]] = {
    "torch": (
        "models.loading",
        "models.calibration",
        "models.quantize",
        "models.checkpoint.gguf_blocks",
        "models.checkpoint.gguf_weights",
        "models.checkpoint.mxfp4",
        "models.checkpoint.packed_weights",
        "models.conversion",
        "models.experts",
        "models.gptq",
        "models.hadamard",
        "models.blocks",
        "models.int4",
        "models.int8",
        "models.quantization_plan",
        "models.evaluate",
        "models.demo",
        "models.skeleton",
        "service.runner",
    ),
    "transformers": ("models", "service.runner"),
    "vllm": ("service.engines.vllm.core",),
    "fastapi": ("service.api", "service.ui", "service.interface", "service.app", "service.bento", "service.deferred"),
    "starlette": (
        "service.api",
        "service.ui",
        "service.interface",
        "service.app",
        "service.deferred",
        "service.packaging",
    ),
    "pydantic": (
        "service.api",
        "service.app",
        "service.bento",
        "service.wrong_settings",
        "service.packaging.inputs",
        "service.scenarios",
        "service.settings",
        "service.cli",
    ),
    "llguidance": ("service.grammars.matching",),
    "prometheus_client": ("service.metrics",),
    "opentelemetry": tuple(f"service.tracing.{name}" for name in ("exporting", "bounded", "encoding", "sender")),
    "bentoml": ("service.bento", "service.packaging"),
    "obstore": ("models.store.s3",),
    "sqlalchemy": ("service.sessions", "service.records"),
    "alembic": ("service.sessions.migrating", "service.sessions.migrations"),
}
FORBIDDEN = {"pickle", "cloudpickle", "marshal", "shelve", "dill"}


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


def part_of(module: str) -> str:
    return max((part for part in ALLOWED if within(module, part)), key=len)


def test_arrows_between_parts() -> None:
    arrows = []
    for path in SOURCES:
        part = part_of(module_name(path))
        targets = {part_of(name) for name in imports(path) if name.split(".")[0] in ("service", "models")}
        arrows += [f"{module_name(path)} → {target}" for target in targets - ALLOWED[part] - {part}]
    nobody(arrows, "new arrows")


def test_libraries_stay_where_they_belong() -> None:
    strangers = []
    for path in SOURCES:
        module = module_name(path)
        for library in {name.split(".")[0] for name in imports(path)}:
            homes = () if library in FORBIDDEN else ONLY.get(library, (module,))
            if not any(within(module, home) for home in homes):
                strangers.append(f"{module} imports {library}")
    nobody(strangers, "libraries have their homes")


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
    homes = {"service.settings", "service.engines.vllm.headless"}  # the second sets one of vLLM's
    readers = {
        module_name(path)
        for path in SOURCES
        for node in nodes(path)
        if isinstance(node, ast.Attribute | ast.Name)
        and ast.unparse(node) in {"os.environ", "os.getenv", "environ", "getenv"}
    }
    nobody(readers - homes, "the environment is read in the settings")


SESSION_TABLES = (
    "service.sessions.owned",
    "service.sessions.retention",
    "service.sessions.everyone",  # the lane's batches and the limit of all files: no owner's content
    "service.sessions.migrations",
)
SESSION_STATEMENTS = (
    *SESSION_TABLES,
    "service.sessions.search",
    "service.sessions.migrating",
    "service.sessions.database",
)


def test_only_owner_bound_statements_reach_the_sessions() -> None:
    """A query that forgets its owner cannot be written by accident: the tables and the words for it are not at hand."""
    reach, build = set(), set()
    for path in SOURCES:
        if "sessions" not in path.parts:
            continue
        for node in nodes(path):
            if not isinstance(node, ast.ImportFrom):
                continue
            names = {alias.name for alias in node.names}
            if node.module == "service.sessions.tables" or (node.module == "service.sessions" and "tables" in names):
                reach.add(module_name(path))
            if node.module == "sqlalchemy" and names & {"select", "insert", "update", "delete", "text"}:
                build.add(module_name(path))
    nobody(outside(reach, SESSION_TABLES), "reach the tables")
    nobody(outside(build, SESSION_STATEMENTS), "build statements")


def test_the_table_names_only_parts_that_exist() -> None:
    for part in ALLOWED:
        assert any(within(module, part) for module in MODULES), f"{part} is in the table but not in the tree"


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
    """In vLLM's interpreter there are no other libraries of this project's, and `models` is not there."""
    script = (
        "import sys, service.engines.vllm.worker, service.engines.vllm.mapping, service.engines.vllm.tally\n"
        "import service.engines.vllm.weights, service.engines.vllm.adapters, service.engine.validation\n"
        "import service.engines.vllm.memory, service.engines.vllm.ranks\n"
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
    engine = [path for path in SOURCES if "engine" in path.parts]
    found = [module_name(path) for path in engine if any(within(name, "asyncio") for name in imports(path))]
    nobody(found, "asyncio ends at the engine client")


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
    assert asking == {"service.api.responses"}
