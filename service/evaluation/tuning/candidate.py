"""A candidate is one choice of the settings that tuning varies. It knows no engine and no figures."""

from __future__ import annotations

from dataclasses import dataclass

from models.manifest import Manifest
from service.host import usable_cores
from service.settings import PREFIX, Settings


@dataclass(frozen=True, slots=True)
class Candidate:
    """`reference` is an exact version. The limits are those of each of `replicas` engine processes, as the settings'
    are."""

    reference: str
    precision: str
    max_num_seqs: int
    max_num_batched_tokens: int
    threads: int
    replicas: int

    def applied(self, settings: Settings) -> Settings:
        """Returns `settings` with what the candidate chooses, but for the version."""
        return settings.model_copy(
            update={
                "max_num_seqs": self.max_num_seqs,
                "max_num_batched_tokens": self.max_num_batched_tokens,
                "threads": self.threads,
                "replicas": self.replicas,
            }
        )

    def variables(self, words: str, resolved: str) -> dict[str, str]:
        """Returns the variables that make a server like this candidate. `words` name the model as its operator did, and
        mean `resolved`: they stay where that version is chosen, so that its alias can still move."""
        model = words if self.reference == resolved else self.reference
        return {
            f"{PREFIX}DEFAULT_MODEL": model,
            f"{PREFIX}MAX_NUM_SEQS": str(self.max_num_seqs),
            f"{PREFIX}MAX_NUM_BATCHED_TOKENS": str(self.max_num_batched_tokens),
            f"{PREFIX}THREADS": str(self.threads),
            f"{PREFIX}REPLICAS": str(self.replicas),
        }

    def __str__(self) -> str:
        return (
            f"{self.reference} {self.precision}, {self.max_num_seqs} sequences, {self.max_num_batched_tokens} tokens, "
            f"{self.replicas} x {self.threads} threads"
        )


def present(settings: Settings, manifest: Manifest) -> Candidate:
    """Returns what a server with `settings` would run."""
    return Candidate(
        manifest.reference,
        manifest.precision,
        settings.max_num_seqs,
        settings.max_num_batched_tokens,
        settings.threads or max(1, usable_cores() // settings.replicas),
        settings.replicas,
    )
