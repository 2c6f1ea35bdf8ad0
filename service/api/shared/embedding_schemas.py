"""Limits of a request for embeddings, the same in each dialect that has one."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

MAX_INPUTS: Final = 2048
MAX_DIMENSIONS: Final = 65536
Dimensions = Annotated[int, Field(ge=1, le=MAX_DIMENSIONS, description="The first so many numbers, normalized again.")]
