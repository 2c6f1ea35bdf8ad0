"""This fake knows who uses vLLM."""

from enum import Enum


class UsageContext(Enum):
    ENGINE_CONTEXT = "ENGINE_CONTEXT"
