"""A load test that is told to end takes its servers with it."""

import subprocess
import sys
from pathlib import Path

import psutil

from tests.waiting import alive

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys, time
from pathlib import Path
from loadtest.counters import serving

with serving("service.app:create", Path(sys.argv[1])) as (_, pid):
    print(pid, flush=True)
    time.sleep(60)
"""


def test_a_server_ends_with_the_load_test_that_started_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as load_test:
        assert load_test.stdout is not None
        server = psutil.Process(int(load_test.stdout.readline()))
        assert alive([server])
        load_test.terminate()
    assert alive([server]) == []
