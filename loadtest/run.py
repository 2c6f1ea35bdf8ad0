"""This command puts a scenario's load on a running server and judges it by the scenario's limits.

    python -m loadtest.run loadtest/scenarios/smoke.toml --host http://127.0.0.1:3000 --out DIR [--baseline DIR]

It writes report.html, report.md, figures.json and samples.jsonl into DIR. Exit status 0: every limit holds; 1: one is
broken, and is named; 2: not measured, with the reason. See docs/load.md.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from loadtest.runner import html_page, markdown, result, sample
from loadtest.runner.address import Address, parse_address
from loadtest.runner.judging import EXIT, cached_otherwise, checks, figures, verdict
from loadtest.runner.result import Baseline, Host, Result
from loadtest.runner.sample import Sample
from service.evaluation.scenarios.figures import NotMeasured
from service.evaluation.scenarios.reading import read_scenario
from service.evaluation.scenarios.scenario import Scenario

if TYPE_CHECKING:
    from loadtest.runner.measuring import Measured


@dataclass(frozen=True, slots=True)
class Plan:
    """All that is known before the first request is sent."""

    scenario: Scenario
    address: Address
    key: str
    out: Path
    host: Host
    baseline: Baseline | None
    command: str


def arguments(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.run", description=__doc__.split("\n")[0], allow_abbrev=False
    )  # `redacted` knows --key whole
    parser.add_argument("scenario", type=Path, help="a file as loadtest/scenarios/smoke.toml")
    parser.add_argument("--host", required=True, help="the server's address, as http://127.0.0.1:3000")
    parser.add_argument("--out", type=Path, required=True, help="directory for the reports")
    parser.add_argument("--baseline", type=Path, help="the --out of an earlier run of the same scenario and host")
    parser.add_argument("--key", default=os.environ.get("DOSIRAK_ADMIN_KEY", ""), help="else DOSIRAK_ADMIN_KEY")
    return parser.parse_args(given)


def prepare(options: argparse.Namespace, command: str) -> Plan:
    """Reads and checks everything. Raises NotMeasured; nothing has been sent then."""
    scenario, address, host = read_scenario(options.scenario), parse_address(options.host), result.this_host()
    if not options.key.isascii() or not options.key.isprintable():
        raise NotMeasured("--key has characters that no header takes")
    before = None
    if options.baseline is not None:
        before = result.read_baseline(options.baseline, scenario, address, host)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=options.out):
            pass  # it can be written: known before the load, not after it
    except OSError as error:
        raise NotMeasured(f"--out {options.out}: {error.strerror}") from None
    return Plan(scenario, address, options.key, options.out, host, before, command)


def judge(plan: Plan, measured: Measured, date: datetime) -> Result:
    counted = [each for each in measured.samples if each.counts]
    window = plan.scenario.load.window
    found = figures(counted, window)
    made = checks(plan.scenario, found, plan.baseline.figures if plan.baseline else None)
    said, why = verdict(made, len(counted), plan.scenario.load.min_samples)
    if plan.baseline and (sentence := cached_otherwise(found, plan.baseline.figures)):
        said, why = "not measured", sentence
    return Result(
        scenario=plan.scenario.name,
        description=plan.scenario.description,
        scenario_digest=plan.scenario.digest,
        verdict=said,
        why=why,
        host=plan.host,
        target=plan.address.machine,
        url=plan.address.url,
        server=measured.server,
        commit=result.commit(),
        command=plan.command,
        date=date.isoformat(timespec="seconds"),
        window=window,
        requests=len(measured.samples),
        counted=len(counted),
        generator_cores=round(measured.cores, 3),
        monotonic_began=round(measured.began, 6),
        figures=found,
        limits=made,
        baseline=plan.baseline,
        versions=_counts(each.model for each in counted if each.model),
        errors=_counts(each.error for each in counted if each.error),
        actions=measured.actions,
    )


def write(out: Path, made: Result, samples: list[Sample]) -> None:
    sample.write(out / "samples.jsonl", samples)
    result.write(out, made)
    (out / "report.md").write_text(markdown.page(made), encoding="utf-8")
    (out / "report.html").write_text(html_page.page(made, samples), encoding="utf-8")


def redacted(given: Sequence[str]) -> str:
    """Returns the command as it is reported: without the key."""
    words, hidden = list[str](), False
    for word in given:
        is_key = word == "--key"
        words.append("…" if hidden else "--key=…" if word.startswith("--key=") else word)
        hidden = is_key
    return shlex.join(["python", "-m", "loadtest.run", *words])


def main(given: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if given is None else given)
    try:
        plan = prepare(arguments(words), redacted(words))
        from loadtest.runner.measuring import measure  # patches the standard library: only behind all refusals

        date = datetime.now(UTC)
        measured = measure(plan.scenario, plan.address, plan.key)
        made = judge(plan, measured, date)
        write(plan.out, made, measured.samples)
    except NotMeasured as error:
        print(f"not measured: {error}")
        return EXIT["not measured"]
    except KeyboardInterrupt:
        print("not measured: interrupted")
        return EXIT["not measured"]
    return tell(made, plan.out)


def tell(made: Result, out: Path) -> int:
    for check in made.limits:
        print(f"{'holds ' if check.holds else 'BROKEN'}  {check.sentence}")
    print(f"{made.scenario}: {made.verdict}{f': {made.why}' if made.why else ''}")
    print(f"{made.counted} requests, {made.generator_cores:.2f} cores for the load itself; {out / 'report.html'}")
    return EXIT[made.verdict]


def _counts(texts: Iterable[str]) -> dict[str, int]:
    return dict(Counter(texts).most_common(50))


if __name__ == "__main__":
    sys.exit(main())
