"""`dosirak model catalogue` shows the small models that have short names."""

from __future__ import annotations

from dataclasses import asdict

from rich.box import SIMPLE_HEAD
from rich.table import Column, Table

from models.imports.catalogue import entries
from service.cli import needs
from service.cli.terminal import Json, answer


def catalogue(json: Json = False) -> None:
    """Small models by short names, for `dosirak serve NAME`, and where each is fetched from."""
    columns = [Column(name, no_wrap=True) for name in ("name", "weights", "fetched", "license")]
    table = Table(*columns, "from", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for entry in entries().values():
        place = f"{entry.place}\n[dim]{entry.about}[/]"
        weights = f"{entry.parameters / 1e6:,.0f} M"
        table.add_row(entry.name, weights, needs.size(entry.bytes), entry.license, place)
    answer(json, [asdict(entry) for entry in entries().values()], table)
