"""This module makes the report of one version: quality against its baseline and speed on this host, by one command or
job.

    quality    perplexity, KL and agreement on a text set (`predictions`); drift of greedy answers; the demo's recall
    speed      prefill and decode, in turn with the baseline (`speed`)

`check` takes seconds: it says whether a conversion went wrong, before `production` points to it. `quick` takes at most
a minute where the versions load within half of it. How much these two measure follows from the first steps (`forecast`,
`planning`). `full` measures a fixed amount and says beforehand how long that will take.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version as installed
from math import isfinite
from pathlib import Path
from typing import Final

from models import __version__
from models.manifest import Manifest
from models.progress import Progress, silent
from models.repository.agreement import agreement
from models.repository.disk.journal import timestamp
from models.repository.report import Amounts, Effort, Recalled, Report
from models.repository.repository import Repository
from service.engine.protocol.messages import Request, SamplingParams
from service.evaluation import figures
from service.evaluation.figures import Measured
from service.evaluation.forecast import SEATS, Forecast
from service.evaluation.offline import Loaded, load, run_all
from service.evaluation.planning import EFFORTS, AnswerPlan, Planner
from service.evaluation.predictions import Predictions, predict
from service.evaluation.recall import NEW_TOKENS, rows
from service.evaluation.speed import ROUNDS, SpeedPlan, paces
from service.evaluation.subject import Subject
from service.evaluation.texts import Text
from service.settings import Settings

LONGEST_WINDOW: Final = 2048
"""The longest context that speed is measured at."""


def evaluate(
    settings: Settings,
    repository: Repository,
    manifest: Manifest,
    effort: Effort = "quick",
    text_file: Path | None = None,
    progress: Progress = silent,
    on_forecast: Callable[[float], object] = lambda seconds: None,
) -> Report:
    """Measures `manifest` and keeps the report in the repository. `on_forecast` gets the seconds that a report without
    a time limit will take from then on. Raises InvalidRequest for a text that cannot be used, Conflict where the
    version is being measured already, and the errors of a model that cannot be loaded."""
    started = time.monotonic()
    with repository.lease(manifest), repository.measuring(manifest):
        subject = Subject(repository, manifest, EFFORTS[effort], text_file)
        progress(0.0, "loading")
        versions = [each for each in (subject.baseline, manifest) if each is not None]
        seated = settings.model_copy(update={"max_num_seqs": max(SEATS, settings.max_num_seqs)})
        loaded = [load(seated, repository, each) for each in versions]
        report = _Evaluation(subject, loaded, effort, started, progress).run(on_forecast)
        repository.put_report(manifest, report)
    return report


class _Evaluation:
    """Of `loaded` the last is the version and, of two, the first its baseline."""

    def __init__(
        self, subject: Subject, loaded: Sequence[Loaded], effort: Effort, started: float, progress: Progress
    ) -> None:
        self._subject = subject
        self._loaded = loaded
        self._effort = effort
        self._started = started
        self._progress = progress
        self._extent = EFFORTS[effort]
        self._window = min(subject.manifest.context_window, LONGEST_WINDOW)
        self._expected_end: float | None = None

    def run(self, on_forecast: Callable[[float], object]) -> Report:
        self._say(0.1, "timing the first steps")
        vocabulary, first = self._subject.manifest.vocab_size, self._subject.texts[0]
        forecasts = [Forecast.measured(each, first, vocabulary) for each in self._loaded]
        planner = Planner(self._extent, forecasts, self._started)
        texts = planner.texts(self._subject.texts)
        if not isfinite(self._extent.seconds):
            seconds = planner.expected_seconds(texts, self._window, self._subject.one_question_a_cell, NEW_TOKENS)
            self._expected_end = time.monotonic() + seconds
            on_forecast(seconds)
        predicted = self._predict(texts)
        speed = planner.speed(self._window)
        self._say(0.5, "measuring speed")
        pace = paces(self._loaded, self._window, vocabulary, speed)
        answers = planner.answers(texts) if self._subject.baseline else AnswerPlan((), 0)
        drift = self._drift(answers)
        measured = Measured(predicted, pace, drift, self._recall(planner))
        return self._report(texts, measured, _amounts(texts, measured, speed, answers))

    def _say(self, fraction: float, doing: str) -> None:
        if self._expected_end is not None:
            doing += f", about {shown_seconds(max(0.0, self._expected_end - time.monotonic()))} left"
        self._progress(fraction, doing)

    def _predict(self, texts: Sequence[Text]) -> list[Predictions]:
        done = 0

        def advance() -> None:
            nonlocal done
            done += 1
            self._say(0.15 + 0.35 * done / len(texts), "predicting text")

        return predict(self._loaded, texts, advance)

    def _drift(self, answers: AnswerPlan) -> list[float]:
        """Returns the agreement of each greedy answer with the baseline's; nothing without answers."""
        if not answers.prompts:
            return []
        self._say(0.8, "answering")
        theirs, mine = (_greedy(each, answers) for each in self._loaded)
        return [agreement(a, b) for a, b in zip(theirs, mine, strict=True)]

    def _recall(self, planner: Planner) -> tuple[Recalled, ...]:
        """Measures recall where the version's template is the demo model's."""
        prompts = self._subject.one_question_a_cell
        if not prompts:
            return ()
        self._say(0.9, "asking for facts")
        questions = self._subject.questions(planner.questions(prompts, NEW_TOKENS))
        cells = rows(self._loaded[-1].core(), self._subject.tokenizer, questions)
        return tuple(Recalled(each.cell, each.wording, each.right, each.questions) for each in cells)

    def _report(self, texts: Sequence[Text], measured: Measured, amounts: Amounts) -> Report:
        baseline = self._subject.baseline
        return Report(
            digest=self._subject.manifest.digest,
            created_at=timestamp(datetime.now(UTC)),
            effort=self._effort,
            texts=figures.text_set(self._subject.text_name, texts, measured.predicted[-1]),
            perplexity=measured.predicted[-1].perplexity,
            compared=figures.comparison(baseline, measured) if baseline else None,
            speed=figures.speed(self._loaded[-1].info, measured.pace[-1]),
            recall=measured.recall,
            tools=(f"torch {installed('torch')}", f"dosirak {__version__}"),
            seconds=round(time.monotonic() - self._started, 1),
            intervals=figures.all_intervals(measured),
            amounts=amounts,
            budget_seconds=self._extent.seconds if isfinite(self._extent.seconds) else None,
        )


def shown_seconds(seconds: float) -> str:
    """Returns a duration in words of one or two numbers, as `40 s`, `6 min` or `1 h 10 min`."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def _amounts(texts: Sequence[Text], measured: Measured, speed: SpeedPlan, answers: AnswerPlan) -> Amounts:
    return Amounts(
        texts=len(texts),
        answers=len(answers.prompts),
        answer_tokens=answers.new_tokens,
        questions=sum(cell.asked for cell in measured.recall),
        rounds=ROUNDS,
        prefill_tokens=speed.prefill_tokens,
        prompt_tokens=speed.prompt_tokens,
    )


def _greedy(loaded: Loaded, answers: AnswerPlan) -> list[list[int]]:
    params = SamplingParams(max_tokens=answers.new_tokens, min_tokens=answers.new_tokens)
    requests = [Request(str(at), prompt, params, arrival=at) for at, prompt in enumerate(answers.prompts)]
    made = run_all(loaded.core(), requests)
    return [[id for output in outputs for id in output.token_ids] for outputs in made.values()]
