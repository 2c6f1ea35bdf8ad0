"""`docs/reliability.md`, written from the results of kept runs; a test compares the page with them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from loadtest.runner.result import ROOT, commit, this_host

RESULTS: Final = ROOT / "loadtest" / "results" / "torture"
PAGE: Final = ROOT / "docs" / "reliability.md"
Result = Mapping[str, Any]

HEAD: Final = """# Reliability, as it was measured

`python -m loadtest.torture` writes this page from its kept results (`loadtest/results/torture/`). It starts a service
with the demo model, asks everything once alone and keeps the answers. Then clients ask the same again, in all dialects
at once, and fill sessions, while faults come one after the other. Moments and kinds follow from a seed.

- **A fault counts** only if it is proven: another process, a counter that rose, an exit status.
- **An answer** must be the one that was given alone, byte for byte, and end as its dialect ends. SIGKILL to the whole
  service may cut it; nothing else may.
- **A turn** that was acknowledged must be in its session once, in order, with its answer. Clients send a turn that was
  not acknowledged again, with its `Idempotency-Key`.
- **Refusals**: 503 with `Retry-After`, while the service starts or drains, and no other.
- **At rest** no place, no block of the KV cache, no descriptor and no thread more is held, but for the threads of the
  event loop's pool, which begin when they are needed: cores + 4 in all.

[`tests/unit/test_torture.py`](../tests/unit/test_torture.py) plants a mistake for every one of these checks.
"""


def keep(name: str, result: dict[str, Any]) -> None:
    """Writes a result, and the page anew."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    made = {**result, "commit": commit(), "host": str(this_host())}
    (RESULTS / f"{name}.json").write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n")
    PAGE.write_text(page(kept_results()))


def kept_results() -> dict[str, Result]:
    """Returns the results by name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}


def page(results: Mapping[str, Result]) -> str:
    """Returns the page."""
    runs = [_row(name, result) for name, result in results.items()]
    table = "| run | faults that fired | answers | compared | turns kept | wrong |\n|---|---|---|---|---|---|\n"
    parts = [HEAD, "## Runs\n", table + "\n".join(runs) + "\n"]
    parts += [_notes(name, result) for name, result in results.items()]
    return "\n".join(parts)


def line(result: Result) -> str:
    """Returns a run in one line."""
    counts = result["counts"]
    return (
        f"{result['seconds']} s of load, {_faults(result)}; {counts.get('answered', 0):,} answers, "
        f"{counts.get('compared', 0):,} compared, {result['acknowledged']:,} turns kept; {_wrong(result)}"
    )


def _row(name: str, result: Result) -> str:
    counts = result["counts"]
    cells = [name, _faults(result), f"{counts.get('answered', 0):,}", f"{counts.get('compared', 0):,}"]
    return "| " + " | ".join([*cells, f"{result['acknowledged']:,}", _wrong(result)]) + " |"


def _faults(result: Result) -> str:
    return _listed(f"{count:,} {kind}" for kind, count in result["faults"].items()) or "none"


def _wrong(result: Result) -> str:
    found, unproven = result["counts"].get("findings", 0), len(result["unproven"])
    return "nothing" if not found + unproven else f"{found} found, {unproven} unproven"


def _notes(name: str, result: Result) -> str:
    counts, memory = result["counts"], result["memory"]
    refused = sum(count for kind, count in counts.items() if kind.startswith("refused "))
    lines = [
        f"- {result['seconds']:,} s of load on {result['date']}, {result['host']}, commit {result['commit']}.",
        f"- {counts.get('left', 0):,} answers were left by their clients, {refused:,} requests were refused and "
        f"{counts.get('lost to a kill or an end', 0):,} lost while the service was killed, started or drained.",
    ]
    if "newcomers refused in drains" in counts:
        told = f"{counts['streams in drains']:,} answers ran at SIGTERM and {counts['newcomers refused in drains']:,}"
        lines.append(f"- {told} newcomers got 503 with `Retry-After`; none of either was cut.")
    if result["lives"] == 1:
        lines += [_memory(each, memory["processes"][each], result["held"].get(each)) for each in memory["processes"]]
    lines += [f"- Wrong: {each}" for each in [*result["findings"][:5], *result["unproven"][:5]]]
    return "\n".join([f"## {name}\n", f"`{result['command']}`\n", *map(_wrapped, lines)]) + "\n"


def _memory(name: str, memory: Mapping[str, float], held: Mapping[str, Any] | None) -> str:
    told = f"- Memory of {name}: {memory['warm_mib']:.0f} MiB warm, {memory['last_mib']:.0f} at the end"
    told += f", {memory['mib_an_hour']:+.1f} MiB an hour"
    if held:
        told += _listed(f"; {what} {before} before and {after} behind" for what, (before, after) in held.items())
    return told + "."


def _listed(parts: Iterable[str]) -> str:
    return ", ".join(parts).replace(", ;", ";")


def _wrapped(text: str) -> str:
    """Breaks a line of a list at 120 characters."""
    lines = [""]
    for word in text.split(" "):
        if len(lines[-1]) + 1 + len(word) > 120:
            lines.append("  " + word)
        else:
            lines[-1] = f"{lines[-1]} {word}" if lines[-1] else word
    return "\n".join(lines)
