"""The models of a fresh installation: those that a bento carries, else the demo model in two versions.

`python -m models.starter DATA_DIR` publishes the demo model; with `REFERENCE=DIRECTORY …` those directories, and the
demo model only where nothing else is there.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

from models.errors import Corrupt
from models.importing import import_source
from models.manifest import DEFAULT_ALIAS, Manifest, ModelReference
from models.progress import Progress, silent
from models.report import Report
from models.repository import Repository

DEMO = "demo"
AUTHOR = "dosirak"
"""The demo model was not asked for by name."""
WEIGHTS = Path(__file__).parent / "demo" / "weights"
REPORT = WEIGHTS.parent / "report.json"
"""What was measured of `demo:2`: its quality is that of these weights anywhere, its speed that of the host it names."""


def demo_is_wanted(repository: Repository) -> bool:
    """Whether nothing but the demo model is there, and that not wholly: a fresh installation, or one cut short."""
    return not (set(repository.models()) - {DEMO} or repository.history(DEMO, DEFAULT_ALIAS)) and WEIGHTS.is_dir()


def missing_of(repository: Repository, carried: Mapping[str, Path]) -> dict[str, Path]:
    """Those of the `carried` versions that are not in the repository."""
    there = {each.reference for name in repository.models() for each in repository.versions(name)}
    return {reference: path for reference, path in carried.items() if reference not in there}


def publish_carried(repository: Repository, carried: Mapping[str, Path]) -> None:
    """A version for each directory, under the reference that it is carried by; one that is there stays. What a
    repository published keeps its digest and lineage. Raises as `import_source` does."""
    for reference, path in missing_of(repository, carried).items():
        wanted = ModelReference.parse(reference)
        import_source(repository, str(path), wanted.name, wanted.version, author=AUTHOR)


def publish_demo(repository: Repository, weights_dir: Path, progress: Progress = silent) -> tuple[Manifest, Manifest]:
    """Have `demo:1` (bf16, from `weights_dir`), `demo:2` (int8, made from it, with the report that ships) and
    `demo@production` = `demo:2`.

    Idempotent, also after a crash half-way: what is there stays, an alias that was moved stays where it was moved.
    Returns both versions. Raises as `import_source` does.
    """
    from models.quantize import quantize

    there = {manifest.version: manifest for manifest in repository.versions(DEMO)}
    original = there.get("1") or import_source(
        repository, str(weights_dir), DEMO, version="1", author=AUTHOR, progress=progress
    )
    small = there.get("2") or quantize(repository, original, version="2", author=AUTHOR, progress=progress)
    _put_report(repository, small)
    if not repository.history(DEMO, DEFAULT_ALIAS):
        repository.promote(DEMO, DEFAULT_ALIAS, small.version, "the demo model of a fresh installation", AUTHOR)
    return original, small


def _put_report(repository: Repository, small: Manifest) -> None:
    """The report that ships, where it is of this content and none is there. Weights that were trained again have
    none until they are measured."""
    try:
        report = Report.from_json(REPORT.read_bytes(), small)
    except (OSError, Corrupt):
        return
    if repository.report(small) is None:
        repository.put_report(small, report)


def main(data_dir: str, *pairs: str) -> None:
    repository = Repository(Path(data_dir))
    publish_carried(
        repository, {reference: Path(path) for reference, _, path in (each.partition("=") for each in pairs)}
    )
    if demo_is_wanted(repository) or not pairs:
        publish_demo(repository, WEIGHTS)


if __name__ == "__main__":
    main(*sys.argv[1:])
