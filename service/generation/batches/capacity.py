"""This module reads how busy the server is: what clients' requests take of its engines, for the lane of batches."""

from __future__ import annotations

from service.deployments.deployments import Deployments
from service.generation.answers import Answers
from service.generation.batches.room import Load


def load_of(deployments: Deployments, answers: Answers) -> Load:
    """Returns the load of this moment: of several engines the busiest counts."""
    stats = [replica.stats for each in deployments.all() for replica in each.engine.replicas]
    shares = [(each.blocks_free + each.blocks_cached) / each.blocks_total for each in stats if each.blocks_total]
    return Load(
        answers.admission.in_progress,
        sum(each.waiting for each in stats),
        min(shares, default=1.0),
        max((each.backlog_seconds for each in stats), default=0.0),
    )
