"""The receipt holds what a model received for one answer, in numbers that sum up. It holds values only; `prompt` does
the counting.

A receipt has two forms: the wire's, which names messages, and the store's, in which `positions` replace the names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from service.context.budget import Budget
from service.context.partition import Counts, Partition, stored_form


@dataclass(frozen=True, slots=True)
class Parts:
    """Token counts. `template`: control tokens, role names, the generation prompt, BOS; `current`: the last message, or
    all of a raw text; `tools`: what the template writes about tools."""

    template: int = 0
    system: int = 0
    documents: int = 0
    summary: int = 0
    history: int = 0
    current: int = 0
    tools: int = 0

    @property
    def total(self) -> int:
        return sum(self.to_dict().values())

    def to_dict(self) -> dict[str, int]:
        """Returns the wire form. A prompt without tools has no such part."""
        return {name: getattr(self, name) for name in self.__slots__ if name != "tools" or self.tools}


@dataclass(frozen=True, slots=True)
class Cut:
    """The oldest message that is sent, and the number of tokens for which the next turns keep this cut."""

    at: str
    stable_for_tokens: int


@dataclass(frozen=True, slots=True)
class Receipt:
    """`used` is the number of ids sent. `kept`, `dropped` and `summarised` partition the message ids; in a long chat
    they list the ids nearest to the cut (`partition.NEAREST`), and `partition` covers all messages. `recalled` are the
    ids of `kept` that came back because they match the question. Documents are listed where there were any;
    `documents_cut` are the ids of `documents_kept` that were not sent whole. `truncated`: something that the request
    wanted sent was not sent. `dropped_tokens` were not sent as they are."""

    policy: str
    window: int
    reserved_output: int
    parts: Parts
    kept: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    summarised: tuple[str, ...] = ()
    dropped_tokens: int = 0
    cached_tokens: int = 0
    cut: Cut | None = None
    notes: tuple[str, ...] = ()
    documents_kept: tuple[str, ...] = ()
    documents_dropped: tuple[str, ...] = ()
    recalled: tuple[str, ...] = ()
    documents_cut: tuple[str, ...] = ()
    partition: Partition | None = None

    @classmethod
    def of(cls, budget: Budget, parts: Parts, notes: Iterable[str]) -> Receipt:
        return cls(budget.options.chosen, budget.window, budget.reserved(parts.total), parts, notes=tuple(notes))

    @property
    def counts(self) -> Counts:
        if self.partition is not None:
            return self.partition.counts
        return Counts(len(self.kept), len(self.dropped), len(self.summarised))

    @property
    def used(self) -> int:
        return self.parts.total

    @property
    def free(self) -> int:
        return self.window - self.used - self.reserved_output

    @property
    def truncated(self) -> bool:
        counts = self.counts
        documents = self.documents_dropped or self.documents_cut
        return bool(self.dropped_tokens or counts.dropped or counts.summarised or documents)

    def with_cached(self, cached_tokens: int, notes: Iterable[str] = ()) -> Receipt:
        """Returns the same receipt with the number of prompt tokens that the engine found in the prefix cache, and with
        `notes` of the answer's."""
        return replace(self, cached_tokens=cached_tokens, notes=(*self.notes, *notes))

    def to_dict(self) -> dict[str, object]:
        """Returns the wire form: docs/api.md, "The context receipt"."""
        cut = None if self.cut is None else {"at": self.cut.at, "stable_for_tokens": self.cut.stable_for_tokens}
        body: dict[str, object] = {
            "policy": self.policy,
            "window": self.window,
            "reserved_output": self.reserved_output,
            "used": self.used,
            "free": self.free,
            "truncated": self.truncated,
            "parts": self.parts.to_dict(),
            "kept": list(self.kept),
            "dropped": list(self.dropped),
            "summarised": list(self.summarised),
            "counts": self.counts.to_dict(),
            "dropped_tokens": self.dropped_tokens,
            "cached_tokens": self.cached_tokens,
            "cut": cut,
            "notes": list(self.notes),
        }
        if self.documents_kept or self.documents_dropped:
            cut_short = {"cut": list(self.documents_cut)} if self.documents_cut else {}
            listed = {"kept": list(self.documents_kept), "dropped": list(self.documents_dropped)}
            body["documents"] = {**listed, **cut_short}
        if self.recalled:
            body["recalled"] = list(self.recalled)
        return body

    def to_stored(self) -> Mapping[str, object]:
        """Returns the store's form of a receipt with a `partition`: its size does not depend on the chat's length."""
        return stored_form(self.to_dict(), self.partition or Partition((), Counts()))
