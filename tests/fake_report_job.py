"""A job's process that makes the report that it is asked for, without torch: `python -m tests.fake_report_job`.

It measures for `FAKE_JOB_SECONDS`, and fails where that is no number.
"""

from __future__ import annotations

import os
import sys
import time

import msgspec

from models.repository.repository import Repository
from service.evaluation.jobs.worker import ProgressWriter
from service.host import die_with_parent
from service.settings import Settings
from tests.reports import COMPARED, report


def main() -> None:
    die_with_parent()
    writer = ProgressWriter()
    asked = msgspec.json.decode(sys.stdin.buffer.read())["arguments"]
    repository = Repository(Settings().data_dir)
    manifest = repository.resolve(asked["model"])
    try:
        with repository.measuring(manifest):
            writer.progress(0.5, "measuring")
            time.sleep(float(os.environ["FAKE_JOB_SECONDS"]))
            repository.put_report(manifest, report(manifest, COMPARED if manifest.version != "1" else None))
    except ValueError as error:
        writer.send({"error": str(error)})
        return
    writer.send({"result": {"model": manifest.name, "version": manifest.version}})


if __name__ == "__main__":
    main()
