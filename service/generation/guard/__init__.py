"""The guard finds protected content in an answer's text, while the text comes, and flags it, masks it or stops the
answer. It knows no tokens, no engine and no HTTP.

    guard file ─▶ Guard ─▶ TextFilter, one a sequence ─▶ text that may be shown, and what was found
"""

from service.generation.guard.configuration import read_guard
from service.generation.guard.corpus import Grams
from service.generation.guard.rules import Action, Finding, Rule
from service.generation.guard.stream import END, Guard, TextFilter

__all__ = ["END", "Action", "Finding", "Grams", "Guard", "Rule", "TextFilter", "read_guard"]
