"""Texts encoded piece by piece are what they are encoded whole, each piece is encoded once, and owners share none."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from time import thread_time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers import Tokenizer as RustTokenizer

from service.text import segments
from service.text.chat import EncodedChat
from service.text.marking import Span
from service.text.messages import Message
from service.text.segments import Memory, Segmented, Splitting
from service.text.tokenizer import Tokenizer
from service.text.vocabulary import Vocabulary, middle
from tests.tokenizers import byte_level, llama, load

PARTS = ["<|im_start|>", "<|im_end|>", "<s>", "<think>", " ", "\n", "a", "가", "😀", "e\u0301"]
TEXTS = st.lists(st.sampled_from(PARTS))


def vocabulary(directory: Path, rust: RustTokenizer) -> Vocabulary:
    return load(directory, rust)._vocabulary


@pytest.fixture(scope="module", params=[byte_level, llama])
def splitting(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Splitting:
    return Splitting(vocabulary(tmp_path_factory.mktemp("tokenizer"), request.param()))


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=TEXTS)
def test_pieces_are_the_whole(splitting: Splitting, parts: list[str]) -> None:
    text, memory = "".join(parts), Memory(splitting)
    for _ in range(2):  # new and remembered
        encoded = memory.encode(text)
        whole = splitting.vocabulary.pieces(text)
        if isinstance(encoded, Segmented):
            assert encoded.ids() == tuple(id for id, _, _ in whole)
            assert encoded.middles() == [middle(start, stop) for _, start, stop in whole]
        assert len(encoded) == len(whole)


PLACES = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 5)), max_size=12)


@given(tokens=PLACES, texts=PLACES)
def test_shares_are_the_owners_counted(tokens: list[tuple[int, int]], texts: list[tuple[int, int]]) -> None:
    """Whatever the template made of the texts: overlapping, empty, in any tokens."""
    pieces = [(0, start, start + length) for start, length in tokens]
    spans = [Span(start, start + length, owner % 5) for owner, (start, length) in enumerate(sorted(texts))]
    chat = EncodedChat(pieces, lambda: tuple(spans), 3, 2)
    shares, counted = chat.shares, Counter(chat.owners())
    assert shares.template == counted[None]
    for owner, share in enumerate([*shares.messages, *shares.documents]):
        assert share == (counted[owner] if any(span.owner == owner for span in spans) else None)


def test_a_chat_with_a_turn_more_encodes_its_new_turn_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = load(tmp_path, byte_level())
    encoded: list[str] = []
    monkeypatch.setattr(tokenizer._vocabulary, "encode", _noting(tokenizer._vocabulary.encode, encoded))
    chat = [Message("user", "hello"), Message("assistant", "world"), Message("user", "안녕하세요")]
    first = tokenizer.encode_chat(chat)
    assert "<s>user\nhello" in encoded
    encoded.clear()
    again = tokenizer.encode_chat([*chat, Message("assistant", "네"), Message("user", "도시락")])
    assert encoded == ["<s>assistant\n네", "<s>user\n도시락"], "behind a token, as in the chat"
    assert again.ids()[: first.count - 4] == first.ids()[:-4], "but for the generation prompt"


def test_owners_share_no_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = load(tmp_path, byte_level())
    encoded: list[str] = []
    monkeypatch.setattr(tokenizer._vocabulary, "encode", _noting(tokenizer._vocabulary.encode, encoded))
    for owner, found in (("ann", False), ("ann", True), ("bob", False), ("bob", True), ("ann", True)):
        encoded.clear()
        its = tokenizer.of(owner)
        its.encode_chat([Message("user", "secret")])
        assert ("<s>user\nsecret" not in encoded) is found, owner
        encoded.clear()
        its.text_tokens("others")
        assert ("others" not in encoded) is found, owner
    assert tokenizer.of("ann") is tokenizer.of("ann")


def test_a_full_memory_forgets_what_was_longest_not_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "MOST_PIECES", 3)
    memory = Memory(Splitting(vocabulary(tmp_path, byte_level())))
    encoded: list[str] = []
    monkeypatch.setattr(memory._splitting, "part", _noting(memory._splitting.part, encoded))
    for at in range(10):
        memory.encode("<|im_start|>first<|im_end|>")
        memory.encode(f"<|im_start|>{at}<|im_end|>")
    assert encoded == ["first", *(f"{at}" for at in range(10))], "what every text begins with is encoded once"
    assert len(memory._known) == 3


def test_an_owners_pieces_are_bounded_in_bytes_too(tmp_path: Path) -> None:
    """Long documents took 70 kB each: 4,096 of them 282 MiB."""
    memory = Memory(Splitting(vocabulary(tmp_path, byte_level())))
    for at in range(40):
        memory.encode(f"<|im_start|>{at}{'abcd ' * 20_000}<|im_end|>")
    kept = [part.num_bytes() for part in memory._known._kept.values()]
    assert kept and sum(kept) == memory._known._taken <= segments.MOST_PIECES_BYTES
    memory.encode(f"<|im_start|>{'abcd ' * 200_000}<|im_end|>")
    assert len(memory._known) >= len(kept), "one text takes not the place of all others"


def test_an_owners_counted_turns_take_two_mib_at_most_however_long_the_hour(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, byte_level()).of("ann")
    first, encoded = segments.digest_of("first"), []

    def count_first() -> int:
        encoded.append("first")
        return 1_000

    tracemalloc.start()
    try:
        for at in range(3 * segments.MOST_COUNTED):
            tokenizer._remembered(first, count_first)
            tokenizer._remembered(segments.digest_of(f"{at}"), lambda: 1_000)
        assert tracemalloc.get_traced_memory()[0] < 2 << 20
    finally:
        tracemalloc.stop()
    assert encoded == ["first"], "what is asked for all the time stays"
    assert len(tokenizer._counted) == segments.MOST_COUNTED


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word"])
def test_where_pieces_would_differ_texts_are_encoded_whole(tmp_path: Path, flag: str) -> None:
    rust = byte_level()
    rust.add_tokens([AddedToken("<mask>", **{flag: True})])
    splitting = Splitting(vocabulary(tmp_path, rust))
    assert not splitting.is_exact
    assert not isinstance(Memory(splitting).encode("a <mask> b"), Segmented)


def test_a_space_that_only_a_texts_beginning_gets_is_known(tmp_path: Path) -> None:
    memory = Memory(Splitting(vocabulary(tmp_path, llama())))
    first, later = memory.encode("ab"), memory.encode("<s>ab")
    assert isinstance(first, Segmented) and isinstance(later, Segmented)
    assert first.ids()[0] != later.ids()[1], "one has the space before it"


def test_a_token_that_begins_another_is_no_anchor(tmp_path: Path) -> None:
    rust = byte_level()
    rust.add_special_tokens(["<s>a"])
    splitting = Splitting(vocabulary(tmp_path, rust))
    text = "<|im_end|>ab"
    encoded = Memory(splitting).encode(text)
    assert isinstance(encoded, Segmented)
    assert list(encoded.ids()) == splitting.vocabulary.encode(text).ids


def test_tokens_looked_for_at_another_time_are_noticed(tmp_path: Path) -> None:
    """Special ones first, then the others, though a longer one begins where the special one does."""
    rust = byte_level()
    rust.add_tokens(["<s>a"])
    assert not Splitting(vocabulary(tmp_path, rust)).is_exact


def test_a_text_that_begins_thousands_of_tokens_and_holds_none_is_split_at_once(tmp_path: Path) -> None:
    rust = byte_level()
    rust.add_tokens([f"<unused{number}>" for number in range(6000)])
    splitting, text = Splitting(vocabulary(tmp_path, rust)), "<" * 200_000
    begun = thread_time()
    assert splitting.split(text) == [text]
    assert thread_time() - begun < 1, "one look at each token at each place takes 5 seconds"


def _noting(encode: Callable[..., object], into: list[str]) -> Callable[..., object]:
    def noted(text: str, **more: object) -> object:
        into.append(text)
        return encode(text, **more)

    return noted


def test_the_demo_models_chats_are_encoded_in_pieces() -> None:
    weights = Path(__file__).parents[2] / "models" / "demo" / "weights"
    assert Tokenizer.load(weights)._splitting.is_exact
