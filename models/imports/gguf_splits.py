"""The table of pre-tokenizers says how text is split before merges, by the names in GGUF files: each of a name's
expressions splits the pieces that the one before it left, at its matches.

Source: the published tokenizer.json files, which the cases of `llm_tokenizer_bpe` in llama.cpp's src/llama-vocab.cpp
name. Of 5,000 texts in 26 scripts every id was llama.cpp's, but for deepseek-coder, deepseek-llm and superbpe (there
llama.cpp splits wide spaces and digits of other scripts in another way than the published tokenizers) and for the names
of words that end before a capital, which llama.cpp does not see (`tests/golden/test_gguf_splits.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_SHORT: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD: Final = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_BLANKS: Final = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3: Final = rf"{_SHORT}|{_WORD}|\p{{N}}{{1,3}}|{_SIGNS}|{_BLANKS}"
_QWEN2: Final = rf"{_SHORT}|{_WORD}|\p{{N}}|{_SIGNS}|{_BLANKS}"
_FALCON_SIGNS: Final = r"[\p{P}\$\+<=>\^~\|`]+"
_IDEOGRAPHS: Final = r"[一-龥぀-ゟ゠-ヿ]+"
_WORDS_OF_V3: Final = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CODER_SCRIPTS: Final = r"[一-龥ࠀ-一가-퟿]+"
_LETTERS_OF_LLM: Final = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥ"
    "ῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_BLOOM: Final = r" ?[^(\s|.,!?…。，、।۔،)]+"
_CAPITALS: Final = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}"
_SMALL: Final = r"\p{Ll}\p{Lm}\p{Lo}\p{M}"


def _cased_words(capitals: str = f"[{_CAPITALS}]", small: str = f"[{_SMALL}]") -> str:
    """Words that end where a small letter comes before a capital, with their contraction: `Camel|Case's`."""
    before = r"[^\r\n\p{L}\p{N}]?"
    return f"{before}{capitals}*{small}+{_SHORT}?|{before}{capitals}+{small}*{_SHORT}?"


_SIGNS_AND_SLASHES: Final = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_NOT_HAN: Final = r"&&[^\p{Han}]"
_SCRIPTS_OF_YOUTU: Final = r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+"
_DIGIT: Final = r"\p{N}"
_TRIPLE: Final = r"\p{N}{1,3}"

# fmt: off
_BY_EXPRESSIONS: Final[Mapping[tuple[str, ...], tuple[str, ...]]] = {
    (_GPT2,): (
        "gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "a.x-4.0", "gigachat", "mellum",
        "exaone4",
    ),
    (_DIGIT, _GPT2): (
        "smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2",
    ),
    (_LLAMA3,): ("glm4", "chatglm-bpe"),
    (_QWEN2,): ("stablelm2", "hunyuan", "solar-open", "grok-2"),
    (_BLOOM,): ("poro-chat", "bloom", "gpt3-finnish"),
    (_BLOOM, _DIGIT): ("viking",),
    (r"[\r\n]", rf"\s?[{_LETTERS_OF_LLM}]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", _CODER_SCRIPTS, r"\p{N}+"): (
        "deepseek-llm",
    ),
    (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CODER_SCRIPTS, _DIGIT): ("deepseek-coder",),
    (_TRIPLE, _IDEOGRAPHS, _WORDS_OF_V3): (
        "deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4",
    ),
    (_FALCON_SIGNS, _GPT2, r"[0-9][0-9][0-9]"): ("falcon",),
    (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"): ("default",),
    (r"\p{N}+", r"(?=(\d{3})+(?!\d))"): ("superbpe",),
    (rf"'(?i:[sdmt]|ll|ve|re)|{_WORD}|\p{{N}}|{_SIGNS}|\s*[\r\n]|\s+(?!\S)|\s+",): (
        "bailingmoe", "bailingmoe2", "llada-moe",
    ),
    (rf"{_SHORT}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_BLANKS}",): ("seed-coder",),
    (
        rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
    ): ("exaone-moe",),
    (_TRIPLE, rf"{_SHORT}|{_WORD}|\p{{N}}+|{_SIGNS}|{_BLANKS}"): ("minicpm5",),
    (rf"{_WORD}|\p{{N}}|{_SIGNS}|{_BLANKS}",): ("ufakzeka",),
    (_SCRIPTS_OF_YOUTU, rf"{_cased_words()}|\p{{N}}|{_SIGNS_AND_SLASHES}|{_BLANKS}"): ("youtu",),
    (r"\d{1,3}(?=(?:\d{3})*\b)", rf"{_cased_words()}|\p{{N}}{{1,3}}|{_SIGNS_AND_SLASHES}|{_BLANKS}"): (
        "tiny_aya", "cohere2moe",
    ),
    (
        rf"\p{{Han}}+|{_cased_words(f'[{_CAPITALS}{_NOT_HAN}]', f'[{_SMALL}{_NOT_HAN}]')}"
        rf"|\p{{N}}{{1,3}}|{_SIGNS}|{_BLANKS}",
    ): ("kimi-k2",),
}
# fmt: on

DEFAULT: Final = "default"
"""The name of how text is split in files that say nothing, as those before May 2024."""
SPLITS: Final[Mapping[str, tuple[str, ...]]] = {
    name: expressions for expressions, names in _BY_EXPRESSIONS.items() for name in names
}
"""The expressions of a name. Names that transformers knows itself are not among them."""
