"""`Metrics` is one app's registry and the way in for everything that is observed. It knows no HTTP library and no
text."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, get_args

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, disable_created_metrics, generate_latest

from service.errors import DosirakError
from service.observability.metrics.compat import Renamed
from service.observability.metrics.families import AnswerFamilies, EngineFamilies, HttpFamilies, SupportFamilies
from service.observability.metrics.inventory import Inventory, InventoryCollector
from service.observability.metrics.recent import Recent
from service.observability.metrics.recorder import ModelMetrics
from service.storage.database.operations import Operation

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
OTHER: Final = "other"
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
STRANGE: Final = ("404", "405")
"""Statuses of a request that no route takes; with a key also 401."""
REJECTED: Final = ("overloaded", "deadline_exceeded", "unavailable")
"""Codes of errors that refuse a request before an engine has it."""
KEPT_SECONDS: Final = 600.0
"""So long a scraper has for an unloaded version's last numbers."""
CLOSED: Final = ("header_timeout", "body_timeout", "header_size", "malformed", "crowded", "full", "unread")
"""Why the server ends a connection."""
BATCH_LINES: Final = ("completed", "failed")


class Metrics:
    """It owns its registry, so that several apps can live in one process. `model` returns the recorder of one
    version."""

    def __init__(self) -> None:
        self._clock = time.monotonic
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._answers = AnswerFamilies(self.registry)
        self._engine = EngineFamilies(self.registry)
        self._http = HttpFamilies(self.registry)
        self._support = SupportFamilies(self.registry)
        self._inventory = InventoryCollector()
        self.registry.register(self._inventory)
        self.summaries = self._support.summaries
        self.turns_waiting = self._support.turns_waiting
        self._vllm = CollectorRegistry()
        self._vllm.register(Renamed(self.registry))
        self._models: dict[tuple[str, str], ModelMetrics] = {}
        self._missed: dict[tuple[str, str], float] = {}
        """When a scrape first found a version of `_models` unloaded."""
        self._guard_rules: tuple[tuple[str, str], ...] = ()
        self._keeps_recent = False
        self._begin()

    def _begin(self) -> None:
        """Makes every series whose labels are known beforehand."""
        for code in sorted({DosirakError.code, *(kind.code for kind in _below(DosirakError))}):
            self._http.errors.labels(code)
        for method in (*sorted(METHODS), OTHER):
            for status in STRANGE:
                self._http.requests.labels(OTHER, method, status)
        for reason in REJECTED:
            self._http.rejected.labels(reason)
        for reason in CLOSED:
            self._http.closed.labels(reason)
        for status in ("401", "429"):
            self._http.wrong_keys.labels(status)
        for result in BATCH_LINES:
            self._support.batch_lines.labels(result)
        for outcome in ("made", "failed"):
            self.summaries.labels(outcome)
        for operation in get_args(Operation):
            self._support.store_seconds.labels(operation)

    def model(self, name: str, version: str) -> ModelMetrics:
        """Returns the recorder of one served version, made at its first use."""
        key = (name, version)
        if key not in self._models:
            made = self._models[key] = ModelMetrics(self._answers, self._engine, key, self._guard_rules)
            made.recent = Recent() if self._keeps_recent else None
        return self._models[key]

    def guarded_by(self, rules: Iterable[tuple[str, str]]) -> None:
        """Tells the guard's (rule, action) before a version is served."""
        self._guard_rules = tuple(rules)

    def keep_recent(self, keep: bool) -> None:
        """Begins to keep each version's recent observations, or forgets them."""
        self._keeps_recent = keep
        for each in self._models.values():
            each.recent = Recent() if keep else None

    def routes(self, taken: Iterable[tuple[str, str]], has_key: bool) -> None:
        """Tells the app's (route template, method). Those that can name an unknown model or path have their series for
        it from now on, so that a scan adds none."""
        if has_key:
            for method in (*METHODS, OTHER):
                self._http.requests.labels(OTHER, method, "401")
        for route, method in taken:
            if method in METHODS and _may_name_unknown(route, method):
                self._http.requests.labels(route, method, "404")

    def http_request(self, route: str | None, method: str, status: int) -> None:
        """Counts a request. `route` is the template (`/v1/models/{id}`), None for a path that no route has."""
        known = method if method in METHODS else OTHER
        self._http.requests.labels(route or OTHER, known, str(status)).inc()

    def error(self, code: str) -> None:
        self._http.errors.labels(code).inc()

    def rejected(self, reason: str) -> None:
        """Counts a request that was refused before an engine had it, by the code of its error."""
        self._http.rejected.labels(reason).inc()

    def connection_closed(self, reason: str) -> None:
        """Counts a connection that the server ended, by one of CLOSED."""
        self._http.closed.labels(reason).inc()

    def wrong_key(self, status: int) -> None:
        """Counts a wrong key by the status that answered it."""
        self._http.wrong_keys.labels(str(status)).inc()

    def door(self, connections: Callable[[], float], wrong_key_peers: Callable[[], float]) -> None:
        """Tells what a scrape asks for two numbers. They are called in any thread."""
        self._http.connections.set_function(connections)
        self._http.wrong_key_peers.set_function(wrong_key_peers)

    def session_store(self, operation: str, seconds: float) -> None:
        """Records one call of the session database."""
        self._support.store_seconds.labels(operation).observe(seconds)

    def stores(self, are_failing: Mapping[str, Callable[[], bool]]) -> None:
        """Tells what a scrape asks, by store. They are called in any thread."""
        for store, is_failing in are_failing.items():
            self._support.stores_failing.labels(store).set_function(is_failing)

    def audit(self, last_row: int, waiting: int) -> None:
        """Takes in the number of the audit's last row, and how many rows wait."""
        self._support.audit_row.set(last_row)
        self._support.audit_waiting.set(waiting)

    def batch_line(self, result: str) -> None:
        """Counts a line of a batch whose answer is kept."""
        self._support.batch_lines.labels(result).inc()

    def batches(self, counts: Mapping[str, int]) -> None:
        """Takes in how many batches there are, by status."""
        self._support.batches.clear()
        for status, count in counts.items():
            self._support.batches.labels(status).set(count)

    def background_task(self, task: str, failures: int) -> None:
        """Records that a background task began or goes on (0), or the number of its failures in a row."""
        self._support.failures.labels(task).inc(failures > 0)
        self._support.failing.labels(task).set(failures > 0)

    def export_failed(self) -> None:
        """Counts an export that the collector of traces did not take. Any thread may call this."""
        self._support.export_failures.inc()

    def spans_dropped(self, spans: int) -> None:
        """Counts spans that no collector gets. Any thread may call this."""
        self._support.spans_dropped.inc(spans)

    def serving(self, server_version: str) -> None:
        self._http.build_info.labels(server_version).set(1)

    def take_stock(self, inventory: Inventory) -> None:
        """Takes in what is true now; every deployed version has its series from here on, and loses them KEPT_SECONDS
        after it was first missed."""
        self._inventory.newest = inventory
        for each in inventory.served:
            self.model(each.model, each.version)
        now = self._clock()
        missed = {key: self._missed.get(key, now) for key in self._models if key not in inventory.observed}
        for key in missed.keys() - self._missed.keys():
            self._models[key].end_engine()
        self._missed = missed
        for key in [key for key, since in self._missed.items() if now - since >= KEPT_SECONDS]:
            del self._models[key]
            for families in (self._answers, self._engine):
                families.forget(*key)

    def exposition(self, as_vllm: bool = False) -> bytes:
        """Returns the text format that `CONTENT_TYPE` names. Any thread may call it."""
        return generate_latest(self._vllm if as_vllm else self.registry)


def _may_name_unknown(route: str, method: str) -> bool:
    """Returns whether a route that only reads or generates takes a model's name, or any path. What writes to the
    repository is asked by operators."""
    if method == "POST" and not route.startswith("/ui/"):
        return "{" not in route
    return method == "GET" and any(part in route for part in ("/models/", "{path"))


def _below(kind: type[DosirakError]) -> Iterator[type[DosirakError]]:
    for each in kind.__subclasses__():
        yield each
        yield from _below(each)
