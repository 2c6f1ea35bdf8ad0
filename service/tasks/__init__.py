"""Tasks of the event loop: those in the background have one owner, those of a request end with it."""

from service.tasks.background import BackgroundTasks, KeptTask
from service.tasks.cancelling import cancelled

__all__ = ["BackgroundTasks", "KeptTask", "cancelled"]
