"""The package runs tasks of the event loop: background tasks have one owner, and a request's tasks end with it."""

from service.tasks.background import BackgroundTasks, KeptTask
from service.tasks.cancelling import cancelled

__all__ = ["BackgroundTasks", "KeptTask", "cancelled"]
