"""Reasoning: what a model writes for itself before its answer. How a version marks it, how it is read, and what a
request may ask of it. The package knows texts only: no tokens, requests or HTTP."""

from service.text.reasoning.forms import ReasoningForm, Start, form_of
from service.text.reasoning.reading import Parted, ReasoningReader
from service.text.reasoning.use import ReasoningUse

__all__ = ["Parted", "ReasoningForm", "ReasoningReader", "ReasoningUse", "Start", "form_of"]
