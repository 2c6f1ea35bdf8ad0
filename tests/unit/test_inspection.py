"""An inspection's words for each message, and its cost; the equations are in
tests/property/test_inspection.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.context.budget import ContextOptions
from service.context.inspection import InspectedMessage
from service.context.partition import NEAREST
from service.context.prompt import Chat, Ids, Prompt, Text, build_prompt
from service.context.sources import Past
from service.text.messages import Document, Message
from service.text.tokenizer import Tokenizer
from service.text.vocabulary import Vocabulary
from tests.tokenizers import byte_level, llama, load

USERS_ONLY = """{% for m in messages %}{% if m.role == 'user' %}<|im_start|>{{ m.content }}<|im_end|>{% endif %}
{%- endfor %}"""


NOTHING = Past()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load(tmp_path_factory.mktemp("tokenizer"))


def talk(turns: int, text: str = "hello world") -> tuple[Message, ...]:
    """A system prompt, `turns` exchanges and a question."""
    said = [Message(role, f"{text} {at}") for at in range(turns) for role in ("user", "assistant")]
    return (Message("system", "You sell lunch."), *said, Message("user", "how much?"))


def inspected(
    tokenizer: Tokenizer,
    chat: tuple[Message, ...],
    window: int = 400,
    policy: Any = "window",
    past: Past = NOTHING,
    documents: tuple[Document, ...] = (),
    **options: Any,
) -> tuple[Prompt, dict[str | None, InspectedMessage]]:
    """The prompt, and its inspected messages by their ids."""
    context = ContextOptions(policy, inspect=True, low_water=0.5, **options)
    source = Chat(chat, past=past)
    prompt = build_prompt(tokenizer, window, source, documents=documents, max_new_tokens=16, context=context)
    assert prompt.inspection is not None
    return prompt, {each.id: each for each in prompt.inspection.messages}


def told(message: InspectedMessage) -> tuple[str, str]:
    return message.state, message.why


def test_a_window_says_what_did_not_fit_and_when(tokenizer: Tokenizer) -> None:
    prompt, found = inspected(tokenizer, talk(12), window=300, pin=("m_2",))
    assert told(found["m_0"]) == ("kept", "system messages are always kept")
    assert told(found["m_1"]) == ("kept", "in a turn with a pinned message")
    assert told(found["m_2"]) == ("kept", "pinned")
    assert told(found["m_25"]) == ("kept", "the current message is always sent")
    newest = f"one of the newest turns, which fit: {prompt.receipt.used} of 284 tokens are used"
    assert prompt.receipt.cut is not None and told(found[prompt.receipt.cut.at]) == ("kept", newest)
    early, late = found["m_3"], found[prompt.receipt.dropped[-1]]
    counted = sum(tokenizer.message_tokens(message) for message in talk(12)[1:17])
    asked = tokenizer.message_tokens(talk(12)[17])
    room = 284 - _least(tokenizer) + tokenizer.message_tokens(talk(12)[25])
    words = f"over the budget at m_17: {counted + asked} tokens of turns do not fit {room}, so the cut goes down to "
    assert told(early) == ("dropped", words + str(room // 2))
    assert late.why.startswith("over the budget at m_"), "a later cut"
    assert early.tokens == tokenizer.text_tokens("hello world 1")


def _least(tokenizer: Tokenizer) -> int:
    chat = talk(12)
    return tokenizer.chat_tokens((chat[0], chat[-1]))


def test_a_cut_of_an_earlier_turn_is_told_as_such(tokenizer: Tokenizer) -> None:
    _, found = inspected(tokenizer, talk(3), past=Past(cut="m_5"))
    assert told(found["m_4"]) == ("dropped", "before m_5, at which the session was cut in an earlier turn")
    assert found["m_5"].state == "kept" and found["m_5"].why.startswith("one of the newest turns")


@pytest.mark.parametrize("policy", ["window", "middle", "summarise", "retrieve"])
def test_a_chat_that_fits_says_by_how_much(tokenizer: Tokenizer, policy: str) -> None:
    prompt, found = inspected(tokenizer, talk(2), policy=policy)
    assert told(found["m_1"]) == ("kept", f"the whole chat fits: {prompt.receipt.used} of 384 tokens")
    prompt, found = inspected(tokenizer, talk(2), policy="refuse")
    assert found["m_1"].why == f"policy refuse leaves nothing out: {prompt.receipt.used} tokens fit 384"


def test_middle_says_what_is_left_out_of_the_last_turn(tokenizer: Tokenizer) -> None:
    chat = (*talk(3)[:-1], Message("user", "a b c " * 200))
    prompt, found = inspected(tokenizer, chat, policy="middle")
    assert told(found["m_1"]) == ("kept", "policy middle always keeps the first turn")
    shortened = prompt.receipt.dropped_tokens - sum(each.tokens for each in found.values() if each.state == "dropped")
    assert shortened > 0
    why = f"the last turn is always kept, but {shortened} tokens of its middle do not fit 384"
    assert told(found["m_7"]) == ("kept", why)
    assert found["m_7"].tokens == prompt.receipt.parts.current, "as it was sent"


def test_a_summary_is_an_entry_and_says_what_it_stands_for(tokenizer: Tokenizer) -> None:
    past = Past(summaries=((21, "They said hello."),))
    prompt, found = inspected(tokenizer, talk(12), window=300, policy="summarise", summary_budget=80, past=past)
    summary = found[None]
    assert (summary.role, told(summary)) == ("summary", ("kept", "stands for what was said before m_21"))
    assert summary.tokens == prompt.receipt.parts.summary > 0
    assert told(found["m_1"]) == ("summarised", "in the summary of what was said before m_21")
    _, found = inspected(tokenizer, talk(12), window=300, policy="summarise", past=Past())
    assert found["m_1"].why.endswith("; no summary was ready")
    _, found = inspected(tokenizer, talk(12), window=300, policy="summarise", past=past, summary_budget=2)
    assert found["m_1"].why.endswith("; no known summary covers it within 2 tokens")


def test_a_turn_that_comes_back_has_its_score_and_the_others_theirs(tokenizer: Tokenizer) -> None:
    chat = talk(12)
    fact = (Message("user", "I am allergic to kimchi"), Message("assistant", "noted"))
    chat = (*chat[:1], *fact, *chat[1:-1], Message("user", "what am I allergic to"))
    _, found = inspected(tokenizer, chat, window=340, policy="retrieve")
    assert found["m_1"].state == found["m_2"].state == "recalled"
    assert found["m_1"].why.startswith("matches the question: score ")
    assert ", number 1 of " in found["m_1"].why and found["m_1"].why.endswith(" older turns")
    assert found["m_3"].state == "dropped" and found["m_3"].why.startswith("matches the question too little: score ")
    _, found = inspected(tokenizer, chat, window=340, policy="retrieve", recall_budget=10)
    words = " tokens of its turn do not fit the 10 that are left for turns that come back"
    assert found["m_1"].state == "dropped" and found["m_1"].why.endswith(words)


def test_documents_and_passages_are_entries(tokenizer: Tokenizer) -> None:
    documents = (Document("menu", "Lunch", "d"), Document("one two three. " * 20), Document("last"))
    past = Past(passages=(Document("open at nine", id="k_1"),))
    _, found = inspected(tokenizer, talk(1), documents=documents, past=past, documents_budget=80)
    assert told(found["d"]) == ("kept", "fits the documents' budget of 80 tokens")
    assert found["d"].tokens == sum(map(tokenizer.text_tokens, ("menu", "Lunch")))
    assert found["d_1"].state == "kept" and found["d_1"].why.startswith("its beginning, ")
    assert f"of its {tokenizer.text_tokens(documents[1].text)} tokens" in found["d_1"].why
    over = "over the documents' budget of 80 tokens, in which documents of higher rank come first"
    assert told(found["d_2"]) == ("dropped", over) and found["d_2"].tokens == tokenizer.text_tokens("last")
    _, found = inspected(tokenizer, talk(1), past=past)
    assert (found[None].role, found[None].why) == (
        "knowledge",
        "passages of the knowledge base that match the question: k_1",
    )


def test_what_the_template_leaves_out_is_dropped_by_the_template(tmp_path: Path) -> None:
    prompt, found = inspected(load(tmp_path, chat_template=USERS_ONLY), talk(2))
    assert told(found["m_2"]) == ("dropped", "the chat template leaves this message out")
    assert prompt.receipt.dropped == ("m_0", "m_2", "m_4")


def test_raw_prompts_are_one_message(tokenizer: Tokenizer) -> None:
    options = ContextOptions(inspect=True)
    whole = build_prompt(tokenizer, 400, Text("hello"), max_new_tokens=4, context=options).inspection
    part = build_prompt(tokenizer, 400, Ids((5, 6, 7)), max_new_tokens=4, truncate=2, context=options).inspection
    assert whole is not None and part is not None
    assert whole.messages[0].why == "the whole prompt is sent"
    assert part.messages == (InspectedMessage(None, "prompt", 2, "kept", "`truncate` keeps the last 2 of 3 tokens"),)
    assert [(token.id, token.message) for token in part.rendered] == [(6, 0), (7, 0)]


def test_of_a_long_chat_all_that_was_sent_and_the_nearest_are_listed(tokenizer: Tokenizer) -> None:
    prompt, found = inspected(tokenizer, talk(1000), pin=("m_3",))
    receipt, inspection = prompt.receipt, prompt.inspection
    assert inspection is not None and len(receipt.kept) + len(receipt.dropped) == NEAREST
    assert "m_0" not in receipt.kept and {"m_0", "m_3", "m_4"} <= found.keys(), "sent, and far from the cut"
    assert tuple(each.id for each in inspection.messages if each.state == "dropped") == receipt.dropped
    assert inspection.unlisted == 2002 - len(found) > 1000
    assert sum(each.tokens for each in found.values() if each.state == "kept") == receipt.used - receipt.parts.template


@pytest.mark.parametrize("rust", [byte_level, llama])
@pytest.mark.parametrize("policy", ["refuse", "window", "retrieve"])
def test_the_cost_grows_with_the_chat_and_no_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rust: Callable[[], Any], policy: Any
) -> None:
    """What the tokenizer reads of 2,000 messages is four times what it reads of 500."""
    tokenizer, costs = load(tmp_path, rust()), []
    work = watched(monkeypatch)
    for messages in (500, 2000):
        context = ContextOptions(policy, inspect=True, max_input_tokens=None if policy == "refuse" else 30 * messages)
        source = Chat(talk(messages // 2 - 1, "hello 안녕"))
        prompt = build_prompt(tokenizer, 10**6, source, max_new_tokens=16, context=context)
        assert prompt.receipt.counts.kept > messages / 4
        work.clear()
        assert prompt.inspection is not None
        costs.append((len(work), sum(work)))
    (calls, length), (more_calls, more_length) = costs
    assert length >= len(prompt.token_ids) / 6 and more_calls <= 4.5 * calls + 10 and more_length <= 4.5 * length


def watched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The length of each text that is encoded and of each run of ids that is decoded."""
    lengths: list[int] = []
    for name in ("encode", "decode"):
        plain = getattr(Vocabulary, name)

        def noting(self: Vocabulary, given: Any, plain: Any = plain, **more: Any) -> Any:
            lengths.append(len(given))
            return plain(self, given, **more)

        monkeypatch.setattr(Vocabulary, name, noting)
    return lengths
