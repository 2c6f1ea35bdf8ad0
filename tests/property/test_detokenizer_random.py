"""Any ids, any cuts: the pieces join to the full decode, and stop strings cut where the whole text says."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from itertools import product, takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as RustTokenizer
from tokenizers import decoders, models

from service.text.detokenizer import Detokenizer
from service.text.files import TokenizerFiles
from service.text.streams import ByteStream, LocalStream, TextStream, WholeStream
from service.text.tokenizer import Tokenizer
from tests.effort import drawn
from tests.tokenizers import SPECIAL, byte_level


def sentence_piece(vocabulary: list[str], decoder: decoders.Decoder) -> RustTokenizer:
    rust = RustTokenizer(models.WordLevel({token: id for id, token in enumerate(vocabulary)}, unk_token="<unk>"))
    rust.decoder = decoder
    rust.add_special_tokens(SPECIAL)
    rust.add_tokens(["<tool call>"])
    return rust


WORDS = [
    "<unk>",
    "▁",
    "▁▁",
    "▁안녕",
    "하",
    "세요",
    "hello",
    "▁hello",
    " ",
    "",
    "😀",
    "\ufffd",
    "##ing",
    ".",
    "a</w>",
    "b",
    "n't",
]
BYTES = [f"<0x{byte:02X}>" for byte in (0x0A, 0x20, 0x41, 0x7F, 0x80, 0x95, 0x88, 0x9F, 0x98, 0xEC, 0xED, 0xF0, 0xFF)]


def llama() -> decoders.Decoder:
    return decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )


KINDS: dict[str, tuple[Callable[[], RustTokenizer], type[TextStream]]] = {
    "byte level": (byte_level, ByteStream),
    "llama": (lambda: sentence_piece(WORDS + BYTES, llama()), LocalStream),
    "gemma": (
        lambda: sentence_piece(
            WORDS + BYTES, decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
        ),
        LocalStream,
    ),
    "metaspace": (lambda: sentence_piece(WORDS, decoders.Metaspace()), LocalStream),
    "word piece": (lambda: sentence_piece(WORDS, decoders.WordPiece()), LocalStream),
    "bpe suffix": (lambda: sentence_piece(WORDS, decoders.BPEDecoder()), WholeStream),
}


@cache
def tokenizer(kind: str) -> Tokenizer:
    source = json.loads(KINDS[kind][0]().to_str())
    return Tokenizer(TokenizerFiles(json.dumps(source), {}, (), None, (), 0))


@pytest.mark.parametrize("kind", KINDS)
def test_the_stream_is_the_one_meant(kind: str) -> None:
    assert type(tokenizer(kind).text_stream()) is KINDS[kind][1]


def decoded(subject: Tokenizer, ids: list[int], skip: bool = True) -> str:
    """The full decode, without an unfinished character at its end."""
    stream = subject.text_stream(skip)
    if isinstance(stream, ByteStream):
        raw = b"".join(map(stream._token_bytes, ids))
        return raw[: len(raw) - unfinished(raw)].decode(errors="replace")
    if isinstance(stream, LocalStream):
        shown = [id for id in ids if stream._byte_of(id) != -1]
        bytes_ = [stream._byte_of(id) for id in shown]
        run = bytes(reversed(list(takewhile(lambda byte: byte is not None, reversed(bytes_)))))  # type: ignore[arg-type]
        return subject.decode(shown[: len(shown) - unfinished(run)], skip_special_tokens=skip)
    return subject.decode(ids, skip_special_tokens=skip).rstrip("\ufffd")


def unfinished(raw: bytes) -> int:
    """How many bytes at the end could be followed by others to make one character."""
    return next((count for count in (3, 2, 1) if len(raw) >= count and _begins_one(raw[-count:])), 0)


def _begins_one(some: bytes) -> bool:
    endings = (bytes(more) for n in (1, 2, 3) for more in product((0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF), repeat=n))
    return any(_is_one(some + ending) for ending in endings)


def _is_one(raw: bytes) -> bool:
    try:
        return len(raw.decode()) == 1
    except UnicodeDecodeError:
        return False


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=drawn(150, 1000), deadline=None)
@given(data=st.data())
def test_deltas_join_to_the_full_decode(kind: str, data: st.DataObject) -> None:
    subject = tokenizer(kind)
    ids = data.draw(st.lists(st.integers(-1, subject.vocab_size + 2), max_size=24))
    skip = data.draw(st.booleans())
    inside = data.draw(st.booleans())
    detokenizer = Detokenizer(subject, skip_special_tokens=skip, inside=inside)
    deltas = [detokenizer.push(id) for id in ids]
    deltas.append(detokenizer.finish())
    before = subject.encode("a", add_special_tokens=False) if inside else []
    whole = decoded(subject, [*before, *ids], skip).removeprefix(decoded(subject, before, skip))
    assert "".join(deltas) == whole == detokenizer.text
    assert sum(delta.count("\ufffd") for delta in deltas) == whole.count("\ufffd")


@settings(max_examples=300, deadline=None)
@given(
    text=st.text(alphabet="가😀 é\n<|im_end|>abc", max_size=60),
    cuts=st.lists(st.integers(1, 4), min_size=1, max_size=80),
)
def test_any_bytewise_cut_of_real_text_gives_it_back(text: str, cuts: list[int]) -> None:
    raw, tokens, at = text.encode(), [], 0
    for width in cuts * (len(raw) + 1):
        tokens.append(raw[at : at + width])
        at += width
        if at >= len(raw):
            break
    stream = ByteStream(lambda id: tokens[id])
    deltas = [stream.push(id) for id in range(len(tokens))]
    assert "".join(deltas) == text
    assert "\ufffd" not in "".join(deltas)
    assert stream.finish() == ""


def expected(texts: list[str], stops: list[str], include_stop: bool) -> tuple[str, bool]:
    """The specification, on the whole text after each token: in the first that has a match, the first end of any, and
    the longest match there. A later token may change an earlier text: `<0x0A>` alone is a line's end, before `<0x80>`
    it is half of an invalid run."""
    for text in texts:
        cut, stopped = _cut(text, stops, include_stop)
        if stopped:
            return cut, True
    return texts[-1] if texts else "", False


def _cut(text: str, stops: list[str], include_stop: bool) -> tuple[str, bool]:
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if stop and text[:end].endswith(stop)]
        if ending:
            return text[: end if include_stop else end - max(map(len, ending))], True
    return text, False


@pytest.mark.parametrize("kind", ["byte level", "llama", "word piece", "bpe suffix"])
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_stop_strings_cut_where_the_text_so_far_says(kind: str, data: st.DataObject) -> None:
    subject = tokenizer(kind)
    ids = data.draw(st.lists(st.integers(0, subject.vocab_size - 1), max_size=24))
    whole = subject.decode(ids)
    pieces = st.tuples(st.integers(0, max(0, len(whole) - 1)), st.integers(1, 4))
    stops = [whole[at : at + n] for at, n in data.draw(st.lists(pieces, max_size=3))] + ["안녕"]
    stops = [stop for stop in stops if "\ufffd" not in stop]
    include = data.draw(st.booleans())
    detokenizer = Detokenizer(subject, stops, include)
    for id in ids:
        detokenizer.push(id)
    detokenizer.finish()
    texts = [*(subject.decode(ids[:count]) for count in range(1, len(ids))), decoded(subject, ids)]
    assert (detokenizer.text, detokenizer.stopped) == expected(texts, stops, include)


@pytest.mark.parametrize("kind", ["byte level", "llama"])
def test_cost_per_token_does_not_grow(kind: str) -> None:
    """Counted, not timed: a stream decodes a bounded number of ids per push."""
    subject, seen = tokenizer(kind), 0
    stream = subject.text_stream()
    if isinstance(stream, LocalStream):
        decode = stream._decode

        def counting(ids: object) -> str:
            nonlocal seen
            seen += len(ids)  # type: ignore[arg-type]
            return decode(ids)  # type: ignore[arg-type]

        stream._decode = counting
    ids = [id for id in range(subject.vocab_size) if subject.token_text(id).isalpha()] * 40
    for id in ids:
        stream.push(id)
    assert seen <= 6 * len(ids)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=drawn(120, 500), deadline=None)
@given(data=st.data())
def test_the_texts_of_tokens_join_to_the_decode(kind: str, data: st.DataObject) -> None:
    subject = tokenizer(kind)
    ids = data.draw(st.lists(st.integers(-1, subject.vocab_size + 2), max_size=24))
    texts = subject.token_texts(ids)
    assert len(texts) == len(ids)
    assert "".join(texts) == subject.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("kind", ["byte level", "llama", "gemma"])
@settings(max_examples=300, deadline=None)
@given(text=st.text(alphabet="안😀", min_size=1, max_size=12))
def test_a_character_is_on_the_token_that_completes_it(kind: str, text: str) -> None:
    subject = tokenizer(kind)
    vocabulary, left = subject._vocabulary, b""
    ids = subject.encode(text)
    if kind != "byte level":
        ids = [vocabulary.id_of(f"<0x{byte:02X}>") or 0 for byte in text.encode()]
    for id, shown in zip(ids, subject.token_texts(ids), strict=True):
        left += vocabulary._token_bytes(id) if kind == "byte level" else bytes([vocabulary._fallback_byte(id) or 0])
        assert shown == left.decode(errors="ignore")
        left = left[len(shown.encode()) :]
    assert not left
