"""Constants of a JSON schema, `const` and `enum`, as the compiler keeps them exactly."""

from __future__ import annotations

import re
from typing import Any, Final

from service.errors import UnsupportedField
from service.text.grammars.json_extent import Extent
from service.text.grammars.json_numbers import is_number, require_exact
from service.text.grammars.json_patterns import UNWRITABLE

_UNWRITABLE: Final = re.compile(f"[{re.escape(''.join(sorted(UNWRITABLE)))}]")


def require_kept(value: Any, at: str, extent: Extent) -> None:
    """Raises UnsupportedField for a constant with a number that the compiler would read as another one, or with a
    control character that it would leave out. RecursionError where it is nested too deep."""
    extent.add_constant(at)
    if isinstance(value, str):
        if _UNWRITABLE.search(value):
            raise UnsupportedField(f"`{at}` cannot act: it has a control character; remove it", param=at)
    elif is_number(value):
        require_exact(value, at)
    elif isinstance(value, list):
        for each in value:
            require_kept(each, at, extent)
    elif isinstance(value, dict):
        for name, each in value.items():
            require_kept(name, at, extent)
            require_kept(each, at, extent)
