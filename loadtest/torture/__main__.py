"""This test loads a service, harms it, and checks that nothing is lost, torn, doubled, refused or kept.

    python -m loadtest.torture --seed 1 --minutes 5                        every fault in turn
    python -m loadtest.torture --faults engine-kill --count 200 --name engine-kills
    python -m loadtest.torture --faults service-kill --count 1000 --uvicorn --every 1 --name service-kills
    python -m loadtest.torture --faults drain --count 100 --name drains
    python -m loadtest.torture --faults abort,slow-reader,unread --minutes 60 --every 20 --name hour

It starts its own server with the demo model, asks everything once alone, and keeps the answers. Then clients ask the
same again, all dialects at once, and fill sessions, while faults come one after the other; moments and kinds follow
from the seed. With `--name` the result is written to `loadtest/results/torture/`, and `docs/reliability.md` anew. Exit
status 1 if an oracle found something, or if a fault could not be proven.
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
import sys
import tempfile
from pathlib import Path

from loadtest.torture import page
from loadtest.torture.faults import FAULTS
from loadtest.torture.run import Plan, run


def _plan(options: argparse.Namespace, folder: Path) -> Plan:
    kinds = tuple(FAULTS) if options.faults == "all" else tuple(filter(None, options.faults.split(",")))
    if unknown := set(kinds) - FAULTS.keys():
        raise SystemExit(f"unknown faults {sorted(unknown)}; there are {', '.join(FAULTS)}")
    seconds = 60 * options.minutes if options.minutes else None
    if seconds is None and not options.count:
        raise SystemExit("say how long: --minutes, --count of faults, or both")
    return Plan(options.seed, kinds, seconds, options.count, options.every, options.clients, options.uvicorn, folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=0, help="of the load; with --count the end that comes first")
    parser.add_argument("--faults", default="all", help=f"some of {','.join(FAULTS)}; or all, or an empty text")
    parser.add_argument("--count", type=int, default=0, help="so many faults, then the end")
    parser.add_argument("--every", type=float, default=4.0, help="mean seconds between the end of a fault and the next")
    parser.add_argument("--clients", type=int, default=10, help="and a third as many sessions at once")
    parser.add_argument("--uvicorn", action="store_true", help="without BentoML's supervisor: starts take less time")
    parser.add_argument("--name", default="", help="keeps the result under this name, for docs/reliability.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(run(_plan(options, Path(folder))))
    if options.name:
        result["command"] = "python -m loadtest.torture " + shlex.join(sys.argv[1:])
        page.keep(options.name, result)
    print(page.line(result))
    print("\n".join([*result["findings"], *result["unproven"]]) or "nothing wrong")
    return 1 if result["findings"] or result["unproven"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
