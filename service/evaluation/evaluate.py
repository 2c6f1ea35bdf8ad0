"""This module makes the report of one version: quality against its parent and speed on this host, by one command or
job.

    baseline   its parent; else the version that `production` points to, else the newest other version of the model
    quality    perplexity, KL and agreement on a text set (`predictions`); drift of greedy answers; the demo's recall
    speed      prefill and decode, in turn with the baseline (`speed`)

`quick` is bounded to about a minute for a model that loads in seconds.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version as installed
from pathlib import Path
from statistics import mean, median

from models import __version__
from models.agreement import agreement
from models.checkpoint.decoder_start import decoder_start
from models.demo.recall import cases
from models.errors import RepositoryError
from models.manifest import DEFAULT_ALIAS, Manifest
from models.progress import Progress, silent
from models.report import Comparison, Effort, Recalled, Report, Speed
from models.repository import Repository
from models.starter import WEIGHTS as DEMO_FILES
from models.storage.journal import timestamp
from service.engine.messages import Request, SamplingParams
from service.evaluation import texts as text_sets
from service.evaluation.offline import Loaded, load, run_all
from service.evaluation.predictions import Predictions, predict
from service.evaluation.recall import SEED, rows
from service.evaluation.speed import Pace, paces
from service.evaluation.texts import Text
from service.settings import Settings
from service.text.tokenizer import Tokenizer

GREEDY_TOKENS = 64
TEMPLATE = "chat_template.jinja"


@dataclass(frozen=True, slots=True)
class Extent:
    """The amount of measuring: dialogues, tokens of a file, greedy answers, questions in a cell, seconds of speed."""

    dialogues: int
    tokens: int
    answers: int
    questions: int
    seconds: float


EFFORTS: dict[Effort, Extent] = {
    "quick": Extent(12, 2_048, 4, 4, 16.0),
    "full": Extent(100, 32_768, 16, 100, 90.0),
}


def evaluate(
    settings: Settings,
    repository: Repository,
    manifest: Manifest,
    effort: Effort = "quick",
    text_file: Path | None = None,
    progress: Progress = silent,
) -> Report:
    """Measures `manifest` and keeps the report in the repository. Raises InvalidRequest for a text that cannot be used,
    and the errors of a model that cannot be loaded."""
    started = time.monotonic()
    with repository.lease(manifest):
        report = _Evaluation(settings, repository, manifest, EFFORTS[effort], progress).run(effort, text_file, started)
        repository.put_report(manifest, report)
    return report


def baseline_of(repository: Repository, manifest: Manifest) -> Manifest | None:
    """Returns the version to compare with; None where no version splits text in the same way."""
    names = [manifest.lineage.parent, f"{manifest.name}@{DEFAULT_ALIAS}"]
    names += [each.reference for each in reversed(repository.versions(manifest.name))]
    for name in filter(None, names):
        try:
            found = repository.resolve(name)
        except RepositoryError:
            continue
        if found.digest != manifest.digest and found.vocab_size == manifest.vocab_size:
            return found
    return None


class _Evaluation:
    def __init__(
        self, settings: Settings, repository: Repository, manifest: Manifest, much: Extent, progress: Progress
    ) -> None:
        self._settings = settings.model_copy(update={"max_num_seqs": max(32, settings.max_num_seqs)})
        self._repository = repository
        self._manifest = manifest
        self._much = much
        self._progress = progress
        self._tokenizer = Tokenizer.load(repository.path(manifest))
        self._baseline: Manifest | None = None

    def run(self, effort: Effort, text_file: Path | None, started: float) -> Report:
        name, texts = self._texts(self._manifest, self._tokenizer, text_file)
        self._progress(0.0, "loading")
        loaded = [load(self._settings, self._repository, each) for each in self._versions(texts, text_file)]
        predicted = self._predict(loaded, texts)
        self._progress(0.5, "measuring speed")
        window = min(self._manifest.context_window, 2048)
        pace = paces(loaded, window, self._manifest.vocab_size, self._much.seconds)
        self._progress(0.8, "answering")
        mine = loaded[-1]
        return Report(
            digest=self._manifest.digest,
            created_at=timestamp(datetime.now(UTC)),
            effort=effort,
            texts=text_sets.described(name, texts),
            perplexity=predicted[-1].perplexity,
            compared=self._compared(loaded, texts, predicted, pace) if len(loaded) > 1 else None,
            speed=_speed(mine, pace[-1]),
            recall=self._recall(mine),
            tools=(f"torch {installed('torch')}", f"dosirak {__version__}"),
            seconds=round(time.monotonic() - started, 1),
        )

    def _texts(self, manifest: Manifest, tokenizer: Tokenizer, text_file: Path | None) -> tuple[str, list[Text]]:
        window = manifest.context_window
        if text_file is not None:
            name, texts = text_file.name, text_sets.of_file(tokenizer, window, text_file, self._much.tokens)
        else:
            name, texts = text_sets.DIALOGUES, text_sets.dialogues(tokenizer, window, self._much.dialogues)
        if decoder_start(self._repository.path(manifest)):
            texts = [text.behind_encoder() for text in texts]
        return name, texts

    def _versions(self, texts: list[Text], text_file: Path | None) -> list[Manifest]:
        """Returns the baseline, if it splits these texts as this version does, and this version."""
        baseline = baseline_of(self._repository, self._manifest)
        if baseline is not None:
            tokenizer = Tokenizer.load(self._repository.path(baseline))
            if self._texts(baseline, tokenizer, text_file)[1] == texts:
                self._baseline = baseline
        return [each for each in (self._baseline, self._manifest) if each is not None]

    def _predict(self, loaded: Sequence[Loaded], texts: Sequence[Text]) -> list[Predictions]:
        from service.runner.scoring import Distributions

        done = 0

        def advance() -> None:
            nonlocal done
            done += 1
            self._progress(0.1 + 0.4 * done / (len(texts) * len(loaded)), "predicting text")

        with Distributions() as kept:
            return [predict(each, texts, kept, at == 0, advance) for at, each in enumerate(loaded)]

    def _compared(
        self, loaded: Sequence[Loaded], texts: Sequence[Text], predicted: Sequence[Predictions], pace: Sequence[Pace]
    ) -> Comparison:
        theirs, mine = predicted
        assert self._baseline is not None  # two versions were loaded
        prompts = [text.token_ids[: max(1, len(text.token_ids) // 2)] for text in texts[: self._much.answers]]
        drift = [agreement(a, b) for a, b in zip(*(_greedy(each, prompts) for each in loaded), strict=True)]
        return Comparison(
            reference=self._baseline.reference,
            digest=self._baseline.digest,
            perplexity_change=mine.perplexity / theirs.perplexity - 1,
            kl=mine.mean_kl,
            top1_agreement=mine.agreement(theirs),
            greedy_agreement=mean(drift),
            decode_ratio={str(batch): ratio for batch, ratio in pace[1].decode_ratio(pace[0]).items()},
        )

    def _recall(self, loaded: Loaded) -> tuple[Recalled, ...]:
        """Measures recall where the version's template is the demo model's."""
        theirs = self._repository.path(self._manifest) / TEMPLATE
        if not theirs.is_file() or theirs.read_bytes() != (DEMO_FILES / TEMPLATE).read_bytes():
            return ()
        asked = cases(SEED, per_cell=self._much.questions)
        found = rows(loaded.core(), self._tokenizer, asked)
        return tuple(Recalled(each.cell, each.wording, each.right, each.asked) for each in found)


def _speed(loaded: Loaded, pace: Pace) -> Speed:
    return Speed(
        host=f"{platform.machine()}, {', '.join(loaded.info.kernels)}",
        threads=loaded.info.threads,
        memory_bytes=loaded.info.memory_bytes,
        load_seconds=round(loaded.info.load_seconds, 3),
        prefill_tokens_per_second=round(median(pace.prefill), 2),
        decode_tokens_per_second={str(batch): round(median(rates), 2) for batch, rates in pace.decode.items()},
    )


def _greedy(loaded: Loaded, prompts: Sequence[tuple[int, ...]]) -> list[list[int]]:
    params = SamplingParams(max_tokens=GREEDY_TOKENS, min_tokens=GREEDY_TOKENS)
    asked = [Request(str(at), prompt, params, arrival=at) for at, prompt in enumerate(prompts)]
    made = run_all(loaded.core(), asked)
    return [[id for output in outputs for id in output.token_ids] for outputs in made.values()]
