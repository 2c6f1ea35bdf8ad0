"""Grammars: what an answer must look like, from the field of a request to the tokens that may come next."""

from service.text.grammars.checking import GrammarChecker
from service.text.grammars.grammar import Grammar

__all__ = ["Grammar", "GrammarChecker"]
