"""This module is `dosirak doctor`: it prints the diagnosis of this host, as tables or as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from service.cli.doctor.checks import Check, gigabytes
from service.cli.settings import settings_or_exit
from service.cli.terminal import Json, console, print_json

if TYPE_CHECKING:
    from service.cli.doctor.diagnosis import Diagnosis, Forecast
    from service.evaluation.host.machine import Host
    from service.evaluation.host.measured import Measured

_MARKS: Final = {"ok": "[green]ok[/]     ", "warning": "[yellow]warning[/]", "problem": "[red]problem[/]"}
_WIDTH: Final = 110
_FITS: Final = {"yes": "", "tight": " *", "no": " †"}


def doctor(
    json: Json = False,
    measure: Annotated[
        bool, typer.Option("--measure/--no-measure", help="Measure for about 5 seconds, or take the last figures.")
    ] = True,
) -> None:
    """What this host is, what is wrong and how to mend it, and which models it could serve how fast. Exit status 1
    where something prevents serving."""
    from service.cli.doctor.diagnosis import diagnose

    settings = settings_or_exit(console)
    quiet = Console(stderr=True)
    with quiet.status("measuring for about 5 seconds"):
        found = diagnose(settings, measure)
    if json:
        print_json(found)
    else:
        show(found, console if console.is_terminal else Console(width=_WIDTH))
    raise typer.Exit(0 if found.serves else 1)


def show(diagnosis: Diagnosis, to: Console) -> None:
    """Prints the diagnosis for people."""
    for table in (
        _facts(diagnosis.host, diagnosis.measured),
        _kernels(diagnosis.host),
        _models(diagnosis.forecasts, to.width),
    ):
        to.print(table)
    to.print(
        "[dim]convert: while a checkpoint in bf16 becomes this version. load: what admission asks for. with KV: when "
        "its cache is full. tok/s: prompts of 128 tokens, answers of 64, so many at once. † not enough memory now, or "
        "disk for its import. * the KV cache may outgrow the memory.[/]\n"
    )
    for check in diagnosis.checks:
        to.print(_line(check), highlight=False, soft_wrap=True)


def _line(check: Check) -> str:
    way = f"\n                     → {escape(check.way_out)}" if check.way_out else ""
    return f"{_MARKS[check.state]} {check.name:<11}  {escape(check.says)}{way}"


def _facts(host: Host, measured: Measured | None) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column()
    processor, variables = host.processor, " ".join(f"{n}={v}" for n, v in host.threads.variables.items())
    table.add_row("processor", f"{processor.name}, {processor.usable_cores} usable cores of {processor.cores}")
    table.add_row("features", " ".join(processor.features) or "none that kernels use")
    limit = f", limit {gigabytes(host.memory.limit)}" if host.memory.limit else ""
    table.add_row("memory", f"{gigabytes(host.memory.available)} free of {gigabytes(host.memory.total)}{limit}")
    table.add_row("threads", f"{host.threads.engine} an engine   {variables}")
    table.add_row("disk", f"{gigabytes(host.disk.free)} free of {gigabytes(host.disk.total)} for {host.disk.directory}")
    table.add_row("graphics", f"NVIDIA driver {host.graphics.driver}" if host.graphics else "no NVIDIA driver")
    packages = ", ".join(f"{name} {version or 'missing'}" for name, version in host.software.packages.items())
    table.add_row("software", f"Dosirak {host.software.dosirak}, Python {host.software.python}, {packages}")
    if measured is not None:
        table.add_row("measured", _measured(measured))
    return table


def _measured(measured: Measured) -> str:
    most = {name: rates[max(rates)] for name, rates in measured.products.items()}
    rates = ", ".join(f"{name} {rate:,.0f}" for name, rate in most.items())
    return f"memory read {measured.memory_read_gb_s:.1f} GB/s; products of 256 rows, GOP/s: {rates}"


def _kernels(host: Host) -> Table:
    table = Table(title="kernels", title_justify="left", box=None, show_header=False, padding=(0, 2, 0, 0))
    for kernel in host.kernels:
        table.add_row(kernel.level, "[green]runs here[/]" if kernel.runs else escape(kernel.why))
    return table


def _models(forecasts: Iterable[Forecast], width: int) -> Table:
    """Returns the table of models; without what an import needs where the terminal is narrow."""
    imported = ("import, disk", "convert") if width >= _WIDTH else ()
    table = Table(title="what models would need here, and how fast they would be", title_justify="left", box=None)
    for name in ("model", "precision"):
        table.add_column(name, no_wrap=True)
    for name in (*imported, "load", "with KV", "tok/s 1", "8", "32", "prefill"):
        table.add_column(name, justify="right", no_wrap=True)
    for each in forecasts:
        fits = "no" if not (each.fits_disk and each.fits_converting) else each.fits
        sizes = [each.importing_disk_bytes, each.converting_bytes] if imported else []
        served = gigabytes(each.serving_bytes) + _FITS[fits]
        cells = (*map(gigabytes, [*sizes, each.loading_bytes]), served, *_speeds(each))
        table.add_row(each.model, each.precision, *cells, style="dim" if fits == "no" else "")
    return table


def _speeds(each: Forecast) -> list[str]:
    if each.expected is None:
        return ["–"] * 4
    rates = [*each.expected.tokens_per_second.values(), each.expected.prefill_tokens_per_second]
    return [f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}" for rate in rates]
