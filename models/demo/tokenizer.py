"""This module trains the demo model's byte-level BPE tokenizer on the corpus and saves it for AutoTokenizer.

Digits, punctuation and Hangul syllables are tokens of their own; words and endings of the wordings stay whole. So a
value has the same tokens at every place and is easy to copy. Text that the corpus never held is spelled in bytes.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from models.demo.dialogue import Dialogue
from models.demo.lexicon import LOWER_CASE, words
from models.demo.smalltalk import SMALL_TALK
from models.demo.wordings_ko import KO, KO_FILLERS

SPECIAL_TOKENS = ["<|pad|>", "<|begin|>", "<|end|>", "<|system|>", "<|documents|>", "<|user|>", "<|assistant|>"]
PAD, BEGIN, END = 0, 1, 2
VOCABULARY = 3072
WINDOW = 2048
ENDINGS = words(
    """
    습니다 입니다 주세요 이에요 예요 어요 아요 세요 해요 할게요 이라고 라고 으로 에서 까지 부터 에게 한테 인데요
    있어요
    """
)
TEMPLATE = Path(__file__).with_name("chat_template.jinja")


def korean_words(limit: int = 640) -> list[str]:
    """Words of two or more syllables of the trained Korean wordings: kept whole where a word begins."""
    texts = [
        text for words in KO.values() for text in (words.nouns, words.tells, words.asks, words.answer, words.known)
    ]
    texts += [
        KO_FILLERS.tell_frames,
        KO_FILLERS.ask_frames,
        KO_FILLERS.corrections,
        KO_FILLERS.openings,
        KO_FILLERS.closers,
    ]
    texts += [KO_FILLERS.json, KO_FILLERS.untold, KO_FILLERS.absent, *KO_FILLERS.acks.split("|")]
    texts += [text for said, reply in SMALL_TALK["ko"] for text in (*said, reply)]
    trained = [part for text in texts for part in text.split("|") if not part.startswith("*")]
    counts = Counter(word for part in trained for word in re.findall(r"(?<![가-힣})])[가-힣]{2,}", part))
    ranked = sorted((word for word in counts if not word.startswith("도시락")), key=lambda word: (-counts[word], word))
    return ["도시락", *ranked[:limit]]


def pre_tokenizer_pattern() -> str:
    """Returns the pattern of pieces. BPE merges inside a piece, never across pieces."""
    kept = "|".join(sorted(korean_words(), key=lambda word: (-len(word), word)))
    endings = "|".join(sorted(ENDINGS, key=lambda word: (-len(word), word)))
    hangul = f"(?: |(?<![가-힣]))(?:{kept})|(?:{endings})|[가-힣]"
    latin = r" [a-z]+| I(?![A-Za-z])|'[a-z]+|[A-Z]?[a-z]+|[A-Z]"
    return rf"{hangul}|{latin}|[0-9]|\s|."


def train_tokenizer(dialogues: Iterator[Dialogue]) -> Tokenizer:
    """A tokenizer of VOCABULARY tokens trained on the texts of `dialogues`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pre_tokenizer_pattern()), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=alphabet,
        show_progress=False,
        min_frequency=2,
    )
    tokenizer.train_from_iterator(_texts(dialogues), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", pair="<|begin|> $A <|begin|> $B", special_tokens=[("<|begin|>", BEGIN)]
    )
    return tokenizer


def _texts(dialogues: Iterator[Dialogue]) -> Iterator[str]:
    for dialogue in dialogues:
        for message in dialogue.messages:
            yield message["content"]
        for document in dialogue.documents:
            yield from document.values()
    for _ in range(300):
        for word in sorted(LOWER_CASE):
            yield from (word, f" {word}")  # so that they are whole, with a space before them or without
        for word in korean_words():
            yield "".join(f"x{syllable}" for syllable in word)  # so that their syllables are whole in other words


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja to `folder`."""
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|begin|>",
        "eos_token": "<|end|>",
        "pad_token": "<|pad|>",
        "model_max_length": WINDOW,
        "padding_side": "left",
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (folder / TEMPLATE.name).write_text(TEMPLATE.read_text(encoding="utf-8"), encoding="utf-8")
