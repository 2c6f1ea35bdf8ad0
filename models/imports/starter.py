"""The starter publishes the models of a fresh installation: a bento's models, else the demo model in two versions.

`python -m models.imports.starter DATA_DIR` publishes the demo model. With `REFERENCE=DIRECTORY …` it publishes these
directories, and the demo model only if the repository has nothing else.
"""

import re
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from models.errors import Corrupt, RepositoryError, disk_is_full
from models.imports import catalogue
from models.imports.importing import import_source
from models.manifest import DEFAULT_ALIAS, Manifest, ModelReference
from models.repository.report import Report
from models.repository.repository import Repository

DEMO = "demo"
AUTHOR = "dosirak"
"""The author of the demo model, which no person asked for."""
WEIGHTS = Path(__file__).parents[1] / "demo" / "weights"
BAKED = WEIGHTS.parent / "versions"
"""In an image with the demo model ready (`docker/image/bake.sh`): a directory for each of its versions."""
REPORT = WEIGHTS.parent / "report.json"
"""The report of `demo:2`. Its quality holds for these weights anywhere; its speed holds for the host that it names."""


def demo_is_wanted(repository: Repository, reference: str = DEMO) -> bool:
    """Returns whether the repository has nothing but a part of the demo model: a fresh or interrupted installation.
    Where there is no torch nothing could publish or serve it. The model that `dosirak serve` fetched into an empty
    repository does not count where `reference`, which is to be served, names the demo."""
    names = set(repository.models())
    if re.split("[:@]", reference)[0] == DEMO and first_is_there(repository):
        names.remove(catalogue.first().name)
    is_promoted = bool(repository.history(DEMO, DEFAULT_ALIAS)) and not (repository.records.shared and not names)
    is_fresh = not (names - {DEMO} or is_promoted)
    return is_fresh and WEIGHTS.is_dir() and find_spec("torch") is not None


def first_is_there(repository: Repository) -> bool:
    """Returns whether the repository has a version of the catalogue's first entry, under the entry's name."""
    first = catalogue.first()
    return any(each.lineage.source.startswith(first.origins) for each in repository.versions(first.name))


def publishing_bytes() -> int:
    """Returns the bytes that publishing the demo model takes at most: both versions, and the one under way."""
    return 3 * sum(path.stat().st_size for path in WEIGHTS.iterdir())


def missing_of(repository: Repository, carried: Mapping[str, Path]) -> dict[str, Path]:
    """Returns the `carried` versions that are not in the repository."""
    published = {each.reference for name in repository.models() for each in repository.versions(name)}
    return {reference: path for reference, path in carried.items() if reference not in published}


def publish_carried(repository: Repository, carried: Mapping[str, Path]) -> None:
    """Publishes each directory as a version, under its reference; an existing version stays. A version that a
    repository published keeps its digest and lineage. Raises as `import_source` does."""
    for reference, path in missing_of(repository, carried).items():
        target = ModelReference.parse(reference)
        import_source(repository, str(path), target.name, target.version, author=AUTHOR)


def publish_demo(repository: Repository, weights_dir: Path) -> tuple[Manifest, Manifest]:
    """Have `demo:1` (bf16, from `weights_dir`), `demo:2` (int8, made from it, with the report that ships) and
    `demo@production` = `demo:2`.

    In an image that has both versions ready, they are copied and nothing is converted.

    Idempotent, also after a crash half-way: what is there stays, an alias that was moved stays where it was moved.
    Returns both versions. Raises as `import_source` does.
    """
    publish_carried(repository, _baked())
    published = {manifest.version: manifest for manifest in repository.versions(DEMO)}
    original = published.get("1") or import_source(repository, str(weights_dir), DEMO, version="1", author=AUTHOR)
    small = published.get("2") or _converted(repository, original)
    _put_report(repository, small)
    if not repository.history(DEMO, DEFAULT_ALIAS):
        repository.promote(DEMO, DEFAULT_ALIAS, small.version, "the demo model of a fresh installation", AUTHOR)
    return original, small


def _converted(repository: Repository, original: Manifest) -> Manifest:
    from models.weights.quantize import quantize  # imports torch

    return quantize(repository, original, version="2", author=AUTHOR)


def _baked() -> dict[str, Path]:
    return {f"{DEMO}:{path.name}": path for path in sorted(BAKED.iterdir())} if BAKED.is_dir() else {}


def _put_report(repository: Repository, small: Manifest) -> None:
    """Stores the shipped report, if it is of this content and the version has none. Weights that were trained again
    have no report until they are measured."""
    try:
        report = Report.from_json(REPORT.read_bytes(), small)
    except (OSError, Corrupt):
        return
    if repository.report(small) is None:
        repository.put_report(small, report)


def main(data_dir: str, *pairs: str) -> None:
    publish(Repository(Path(data_dir)), *pairs)


def publish(repository: Repository, *pairs: str) -> None:
    """Publishes the directories of `pairs`, each as `reference=directory`, and the demo model where it is wanted."""
    publish_carried(
        repository, {reference: Path(path) for reference, _, path in (each.partition("=") for each in pairs)}
    )
    if demo_is_wanted(repository) or not pairs:
        publish_demo(repository, WEIGHTS)


def why(error: RepositoryError | OSError) -> str:
    if disk_is_full(error):
        return "the first models could not be published: the disk of the data directory is full; make room there"
    return f"the first models could not be published: {error}"


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (RepositoryError, OSError) as failure:
        sys.exit(why(failure))
