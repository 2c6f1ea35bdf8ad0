"""This module trains the demo model's byte-level BPE tokenizer on the corpus and saves it for AutoTokenizer.

Digits, punctuation and Hangul syllables are tokens of their own, so a value has the same tokens at every place and is
easy to copy, and an ending that training never met is read syllable by syllable. Text that the corpus never held is
spelled in bytes.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from models.demo.dialogue import Dialogue
from models.demo.lexicon import LOWER_CASE, words

SPECIAL_TOKENS = ["<|pad|>", "<|begin|>", "<|end|>", "<|system|>", "<|documents|>", "<|user|>", "<|assistant|>"]
PAD, BEGIN, END = 0, 1, 2
VOCABULARY = 4096
WINDOW = 2048
WHOLE = words(
    """
    습니다 입니다 주세요 이에요 예요 어요 아요 세요 해요 할게요 이라고 라고 으로 에서 까지 부터 에게 한테 인데요
    있어요 도시락 주문 알레르기 얼마 기억 시간 배달 픽업 안녕 감사 죄송 가게 메뉴 음료 주소 번호
    """
)
TEMPLATE = Path(__file__).with_name("chat_template.jinja")


def pre_tokenizer_pattern() -> str:
    """Returns the pattern of pieces. BPE merges inside a piece, never across pieces."""
    whole = "|".join(sorted(WHOLE, key=lambda word: (-len(word), word)))
    latin = r" [a-z]+| I(?![A-Za-z])|'[a-z]+|[A-Z]?[a-z]+|[A-Z]"
    return rf"(?:{whole})|[가-힣]|{latin}|[0-9]|\s|."


def train_tokenizer(dialogues: Iterable[Dialogue]) -> Tokenizer:
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


def _texts(dialogues: Iterable[Dialogue]) -> Iterator[str]:
    for dialogue in dialogues:
        for message in dialogue.messages:
            yield message["content"]
        for document in dialogue.documents:
            yield from document.values()
    for _ in range(300):
        for word in sorted(LOWER_CASE):
            yield from (word, f" {word}")  # so that they are whole, with a space before them or without
        for word in WHOLE:
            yield "x".join(word)  # so that their syllables are whole in other words


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
