"""The guard finds protected content in an answer's text, while the text comes, and flags it, masks it or stops the
answer. It knows no tokens, no engine and no HTTP.

    guard file ─▶ Guard ─▶ Watch, one a sequence ─▶ text that may be shown, and what was found
"""

from service.generation.guard.configuration import read_guard
from service.generation.guard.corpus import Grams
from service.generation.guard.rules import Action, Finding, Rule
from service.generation.guard.stream import END, Guard, Watch

__all__ = ["END", "Action", "Finding", "Grams", "Guard", "Rule", "Watch", "read_guard"]
