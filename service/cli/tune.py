"""`dosirak tune MODEL --load FILE` finds the settings with which a model serves a load best here, and writes them.

Exit status 0: written, and every limit holds; 1: written, and a limit is broken; 2: not measured; 130: Ctrl-C.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.text import Text

from models.errors import Conflict
from models.imports.starter import DEMO, demo_is_wanted
from models.manifest import DEFAULT_ALIAS, Manifest, ModelReference
from models.repository.disk import leases
from models.repository.repository import Repository
from service.cli.foreign import plain
from service.cli.serve.checks import address, check_directory, is_dosirak, marked
from service.cli.settings import settings_or_exit
from service.cli.terminal import Json, Reference, console, print_json
from service.cli.tuning_screen import TuningScreen, print_outcome, shown_outcome
from service.errors import NoEngine
from service.evaluation.scenarios.figures import NotMeasured
from service.evaluation.scenarios.reading import read_scenario
from service.evaluation.scenarios.scenario import Scenario
from service.evaluation.tuning import outcome
from service.evaluation.tuning.field import family, field, present
from service.evaluation.tuning.outcome import Outcome
from service.host import has_gpu, has_torch, usable_cores
from service.settings import Settings
from service.storage.records import open_repository

BROKEN: Final = 1
NOT_MEASURED: Final = 2
INTERRUPTED: Final = 130
DAY: Final = 86_400.0


@contextmanager
def alone(settings: Settings, repository: Repository, versions: list[Manifest], anyway: bool) -> Iterator[str]:
    """Marks the data directory as used while inside. Yields what uses it already, "" for nothing. Raises NotMeasured
    for that, unless `anyway`."""
    with ExitStack() as held:
        warning = held.enter_context(marked(settings.data_dir))
        user = f"a server uses {settings.data_dir}" if warning else _other_user(settings, repository, versions)
        if user and not anyway:
            raise NotMeasured(
                f"{user}: it would get slower and the figures would be wrong; end it first, or tune beside it with "
                "--anyway"
            )
        yield user


def _other_user(settings: Settings, repository: Repository, versions: list[Manifest]) -> str:
    """Servers that `dosirak serve` did not start make no mark, but they answer, or lease their versions."""
    if is_dosirak(settings):
        return f"a server answers at {address(settings)}"
    for version in versions:
        try:
            with leases.unused(repository.path(version)):
                pass
        except Conflict:
            return f"another process uses {version.reference}"
    return ""


def tune(
    model: Reference,
    load: Annotated[Path, typer.Option(help="A scenario, as loadtest/scenarios/chat.toml: what load, which limits.")],
    seconds: Annotated[float, typer.Option(min=1, max=DAY, help="What it may take in all.")] = 300,
    out: Annotated[Path, typer.Option(help="The file to write, for dosirak serve --settings.")] = Path(outcome.NAME),
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Also beside a server in use, which then slows down.")
    ] = False,
    json: Json = False,
) -> None:
    """Find the settings with which MODEL serves a load best on this host, and write them to tuned.env.

    Candidates are precision x batch limits x threads x replicas. Each round
    puts the load on every candidate that is left, in turns, and keeps the
    better half. The frontier that is printed has the candidates that no other
    beats in tokens a second, p95 TTFT and p95 ITL at once.
    """
    settings = settings_or_exit(console)
    if not has_torch():
        raise NoEngine
    try:
        tuning = _Tuning.of(settings, model, read_scenario(load), seconds, out)
        raise typer.Exit(tuning.run(anyway, json))
    except NotMeasured as error:
        console.print(Text.assemble(("not measured", "red"), f": {error}"), soft_wrap=True)
        raise typer.Exit(NOT_MEASURED) from None


@dataclass(frozen=True, slots=True)
class _Tuning:
    """All that is known before the first engine starts. `refused`: versions that the gate keeps out, and why."""

    settings: Settings
    repository: Repository
    words: str
    manifest: Manifest
    versions: list[Manifest]
    refused: dict[str, str]
    scenario: Scenario
    seconds: float
    out: Path

    @classmethod
    def of(cls, settings: Settings, words: str, scenario: Scenario, seconds: float, out: Path) -> _Tuning:
        outcome.require_writable(out)
        check_directory(settings.data_dir)
        repository = open_repository(settings)
        if ModelReference.parse(words).name == DEMO and demo_is_wanted(repository):
            from models.imports.starter import WEIGHTS, publish_demo

            publish_demo(repository, WEIGHTS)
        manifest = repository.resolve(words)
        found = family(repository, manifest)
        refused = _refused(settings, repository, found[1:])
        versions = [each for each in found if each.reference not in refused]
        return cls(settings, repository, words, manifest, versions, refused, scenario, seconds, out)

    def run(self, anyway: bool, json: bool) -> int:
        """Returns the exit status."""
        from service.evaluation.tuning.engines import Engines, engine_of
        from service.evaluation.tuning.tuner import Tuner
        from service.evaluation.tuning.workload import Workload

        workload = Workload.of(self.scenario, self.repository, self.manifest)
        with ExitStack() as held:
            beside = held.enter_context(alone(self.settings, self.repository, self.versions, anyway))
            screen = TuningScreen(console, self.seconds, quiet=json)
            screen.begins(self.manifest, self.versions, self.refused, self.scenario, beside)
            base = present(self.settings, self.manifest)
            engines = Engines(self.repository, self.versions, partial(engine_of, self.settings, self.repository))
            on_gpu = self.settings.computes_on_gpu(has_gpu())
            candidates = partial(field, base, self.versions, cores=None if on_gpu else usable_cores())
            tuner = Tuner(workload, engines, base, candidates, self.seconds, screen)

            async def measure() -> None:
                try:
                    await tuner.run()
                finally:
                    await engines.close()

            is_whole = _ran(measure, screen)
        return self._tell(tuner.outcome, is_whole, json, beside)

    def _tell(self, result: Outcome, is_whole: bool, json: bool, beside: str) -> int:
        if json:
            print_json(shown_outcome(result, self.words, self.manifest))
        else:
            print_outcome(result, console)
        if not is_whole:
            if not json:
                console.print(plain(f"interrupted: {self.out} is not written"))
            return INTERRUPTED
        if result.chosen is None:
            raise NotMeasured("no candidate could serve this load; the reasons are above")
        chosen = next(each for each in self.versions if each.reference == result.chosen.candidate.reference)
        command = shlex.join(["dosirak", *sys.argv[1:]])
        outcome.write(self.out, self.words, self.manifest, chosen, result, command, beside)
        if not json:
            console.print(plain(f"{self.out} is written: dosirak serve --settings {self.out}"), soft_wrap=True)
        return BROKEN if result.chosen.broken else 0


def _refused(settings: Settings, repository: Repository, versions: list[Manifest]) -> dict[str, str]:
    """Returns the versions that production could not point to, with the reason: speed is no reason to serve them."""
    limits = settings.gate(DEFAULT_ALIAS)
    if limits is None:
        return {}
    broken = {each.reference: repository.broken_limits(each, DEFAULT_ALIAS, limits) for each in versions}
    return {reference: "; ".join(why) for reference, why in broken.items() if why}


def _ran(measure: Callable[[], object], screen: TuningScreen) -> bool:
    """Runs to the end; returns False after Ctrl-C, when all engines have ended."""
    import uvloop

    try:
        with screen, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(measure())  # type: ignore[arg-type]
    except KeyboardInterrupt:
        return False
    return True
