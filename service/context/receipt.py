"""What a model received for one answer, in numbers that sum up. Values only: `prompt` counts."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Parts:
    """Token counts. `template`: control tokens, role names, the generation prompt, BOS; `current`: the last message, or
    all of a raw text."""

    template: int = 0
    system: int = 0
    documents: int = 0
    summary: int = 0
    history: int = 0
    current: int = 0

    @property
    def total(self) -> int:
        return self.template + self.system + self.documents + self.summary + self.history + self.current

    def to_dict(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Cut:
    """The oldest message that is sent, and for how many more tokens the next turns keep it."""

    at: str
    stable_for_tokens: int


@dataclass(frozen=True, slots=True)
class Receipt:
    """`used` is the number of ids sent. `kept`, `dropped` and `summarised` partition the message ids; `recalled` are
    those of `kept` that came back because they match the question. Documents are listed where there were any.
    `truncated`: something that was asked to be sent was not. `dropped_tokens` were not sent as they are."""

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

    @property
    def used(self) -> int:
        return self.parts.total

    @property
    def free(self) -> int:
        return self.window - self.used - self.reserved_output

    @property
    def truncated(self) -> bool:
        return bool(self.dropped_tokens or self.dropped or self.summarised or self.documents_dropped)

    def with_cached(self, cached_tokens: int, note: str = "") -> Receipt:
        """The same receipt once the engine has said how many prompt tokens it found in the prefix cache; with `note`,
        if there is one to add."""
        notes = (*self.notes, note) if note else self.notes
        return replace(self, cached_tokens=cached_tokens, notes=notes)

    def to_dict(self) -> dict[str, object]:
        """The wire form: docs/api.md, "The context receipt"."""
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
            "dropped_tokens": self.dropped_tokens,
            "cached_tokens": self.cached_tokens,
            "cut": None if self.cut is None else {"at": self.cut.at, "stable_for_tokens": self.cut.stable_for_tokens},
            "notes": list(self.notes),
        }
        if self.documents_kept or self.documents_dropped:
            body["documents"] = {"kept": list(self.documents_kept), "dropped": list(self.documents_dropped)}
        if self.recalled:
            body["recalled"] = list(self.recalled)
        return body
