"""The environment of this process and of its children: what stands in it, and what each of them is given."""

from __future__ import annotations

import os
from collections.abc import Mapping

from service.settings import PREFIX, Settings

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "GOMP_CPU_AFFINITY")


def add_to_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Sets the variables that the environment does not have, for this process and its children: the environment wins.
    Returns those that it has with another value."""
    present = {name.upper(): value for name, value in os.environ.items()}
    os.environ.update({name: value for name, value in variables.items() if name not in present})
    return {name: present[name] for name, value in variables.items() if present.get(name, value) != value}


def leave_multiprocess_metrics() -> None:
    """Undoes BentoML's switch to multiprocess metric files; must run before the first import of `prometheus_client`."""
    os.environ.pop("PROMETHEUS_MULTIPROC_DIR", None)


def colours_wanted(terminal: bool) -> bool:
    """Returns whether text may have colours: on a terminal, unless NO_COLOR is set (no-color.org); elsewhere where
    FORCE_COLOR is."""
    return not os.environ.get("NO_COLOR") and (terminal or bool(os.environ.get("FORCE_COLOR")))


def child_environment(settings: Settings, *, for_terminal: bool = False) -> dict[str, str]:
    """Returns the environment for `bentoml serve`, which has another working directory: its home is our data directory,
    paths and default model are those of the settings, and it reports no usage data. With `for_terminal` it writes its
    log as on a terminal, although its parent shows it there."""
    database = settings.database_url and settings.database_url.get_secret_value()
    ours = {
        f"{PREFIX}DATA_DIR": str(settings.data_dir),
        f"{PREFIX}GUARD_FILE": settings.guard_file and str(settings.guard_file),
        f"{PREFIX}VLLM_PYTHON": settings.vllm_python and str(settings.vllm_python),
        f"{PREFIX}DATABASE_URL": database,
        f"{PREFIX}DEFAULT_MODEL": settings.default_model,
        f"{PREFIX}DRAFT_MODEL": settings.draft_model,
    }
    others = {name: value for name, value in os.environ.items() if name.upper() not in ours}
    environment = {**others, **{name: value for name, value in ours.items() if value}}
    environment |= {"BENTOML_HOME": str(settings.data_dir), "BENTOML_DO_NOT_TRACK": "true"}
    if for_terminal and settings.log_format == "auto":
        environment[f"{PREFIX}LOG_FORMAT"] = "console"
    if for_terminal and colours_wanted(terminal=True):
        environment["FORCE_COLOR"] = "1"
    return environment


def thread_environment() -> dict[str, str]:
    """Returns what an engine process will find of the variables that OpenMP itself reads."""
    return {name: value for name, value in engine_environment().items() if name in THREAD_VARIABLES}


def engine_environment() -> dict[str, str]:
    """Returns the environment for an engine process. By default its OpenMP threads spin for about the time between two
    steps and then sleep: threads that spin on make a step 30 times slower as soon as other work wants a core
    (loadtest/results/log.md). torch's profiler writes no lines of its own to the log."""
    return {"GOMP_SPINCOUNT": "30000", "KINETO_LOG_LEVEL": "99", **os.environ}
