"""A trial says, in seconds, whether what one word converted may stand in production: it is measured beside its parent,
and the gate judges it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console

from models.errors import RepositoryError
from models.manifest import DEFAULT_ALIAS, Manifest
from models.repository.gate import Limits
from models.repository.report import Effort
from models.repository.repository import Repository
from service.cli import needs
from service.cli.reports import report_of
from service.deployments.needs import report_bytes
from service.host import available_memory


@dataclass(frozen=True, slots=True)
class Trial:
    """`measure` makes a version's report, with the effort given."""

    store: Repository
    limits: Limits | None
    effort: Effort
    console: Console
    measure: Callable[[Manifest, Effort], None]

    def broken(self, manifest: Manifest) -> tuple[str, ...]:
        """Returns the limits of production that a version breaks. One without a readable report is measured; its
        figures are said where it breaks none. A version that is no conversion, or cannot be measured here, breaks
        none."""
        if self.limits is None or not manifest.is_conversion:
            return ()
        is_new = report_of(self.store, manifest)[0] is None
        if is_new and not self._measured(manifest):
            return ()
        broken = self.store.broken_limits(manifest, DEFAULT_ALIAS, self.limits)
        if is_new and not broken:
            parent, checks = manifest.lineage.parent, self.store.gate_checks(manifest, DEFAULT_ALIAS, self.limits)
            figures = "; ".join(each.sentence.removesuffix(f" of {parent}") for each in checks)
            self.say(f"{manifest.reference} ({manifest.precision}) is measured beside {parent}: {figures}")
        return broken

    def warn(self, manifest: Manifest) -> None:
        """Says what a version breaks that was asked for by its precision."""
        if broken := self.broken(manifest):
            self.say(f"warning: {manifest.reference} ({manifest.precision}) is served as asked: {'; '.join(broken)}")

    def say(self, text: str) -> None:
        self.console.print(text, soft_wrap=True, highlight=False, markup=False)

    def _measured(self, manifest: Manifest) -> bool:
        """Measures the version. Returns whether that was possible, and says why it was not."""
        why = ""
        try:
            parent = self.store.resolve(manifest.lineage.parent or "")
            needed, free = report_bytes(manifest, parent), available_memory()
            if needed <= free:
                self.measure(manifest, self.effort)
                return True
            why = f"with {parent.reference} beside it that needs {needs.size(needed)}, and {needs.size(free)} are free"
        except RepositoryError as error:
            why = str(error)
        self.say(f"{manifest.reference} ({manifest.precision}) is not measured before it is served: {why}")
        return False
