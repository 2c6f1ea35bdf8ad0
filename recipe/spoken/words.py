"""Words are the lists under `text/` that values are made of. It knows no value and no line."""

from functools import cache

from models.demo.lexicon import Lang
from recipe.spoken.lines import TEXT


@cache
def words(key: str, lang: Lang) -> tuple[str, ...]:
    """The words of a list, separated by spaces (then `_` is a space in a word) or by `|`."""
    return _lists(lang)[key]


@cache
def dishes(lang: Lang) -> tuple[str, ...]:
    """Names of dishes in the language."""
    lines = (TEXT / "dishes.txt").read_text(encoding="utf-8").splitlines()
    place = 0 if lang == "ko" else 1
    return tuple(dict.fromkeys(line.split(" | ")[place] for line in lines if " | " in line and line[0] != "#"))


@cache
def syllables() -> tuple[str, ...]:
    """The Hangul syllables of all Korean words and dishes, each once."""
    written = "".join((*dishes("ko"), *(word for found in _lists("ko").values() for word in found)))
    return tuple(sorted({char for char in written if "가" <= char <= "힣"}))


@cache
def _lists(lang: Lang) -> dict[str, tuple[str, ...]]:
    lists: dict[str, tuple[str, ...]] = {}
    key = ""
    for line in (TEXT / lang / "words.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("== "):
            key = line[3:]
        elif line and not line.startswith("#"):
            found = line.split("|") if "|" in line else [word.replace("_", " ") for word in line.split()]
            lists[key] = (*lists.get(key, ()), *found)
    return lists
