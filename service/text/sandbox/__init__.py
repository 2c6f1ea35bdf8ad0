"""The sandbox is Jinja's immutable sandbox with bounds on time and size.

The package knows template code: no chats, no tokens.
"""

from service.text.sandbox.budget import Budget, TookLong, TooMuch, renderings_within, seconds_for
from service.text.sandbox.environment import BoundedEnvironment

__all__ = ["BoundedEnvironment", "Budget", "TooMuch", "TookLong", "renderings_within", "seconds_for"]
