"""One call's text, chat or ids → the token ids to send, with their receipt: all of it, or an error that says by how
much it does not fit; of a chat, what its policy leaves of it.

    window            [ prompt ............................ | reserve ....... | free ]
    input budget      [ <= window - reserve, <= max_input_tokens ]

Knows the tokenizer and numbers of tokens; no sessions, no engine, no wire format. Counts come first: nothing of a
prompt's length is built before it is known to fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from service.context.budget import Budget
from service.context.composing import SYSTEM_ROLES, compose, current, nfc, require_calls, require_order
from service.context.documents import Placed, by_match, by_rank
from service.context.options import ContextOptions
from service.context.placing import KNOWLEDGE, SUMMARY, Line
from service.context.receipt import Cut, Parts, Receipt
from service.context.trimming import Past, Trimmed, trim
from service.errors import ContextOverflow, InvalidRequest, UnsupportedField
from service.text.chat import Shares
from service.text.messages import Document, Message
from service.text.tokenizer import Tokenizer

NO_SUMMARY_NOTE = "no summary was ready: older messages are left out"


@dataclass(frozen=True, slots=True)
class Text:
    """A raw prompt; gets the tokenizer's own special tokens."""

    text: str


@dataclass(frozen=True, slots=True)
class Chat:
    """Messages, oldest first; system messages before all others, the last message is the current one. `names` are
    theirs in a receipt; without any they are `m_0`, `m_1`, … by position. `past` is what the server knows of it."""

    messages: tuple[Message, ...]
    names: tuple[str, ...] = ()
    past: Past = Past()  # noqa: RUF009  (frozen)

    @property
    def named(self) -> tuple[str, ...]:
        return self.names or tuple(f"m_{at}" for at in range(len(self.messages)))


@dataclass(frozen=True, slots=True)
class Ids:
    """Token ids, sent as they are."""

    token_ids: tuple[int, ...]


Source = Text | Chat | Ids


class Prompt:
    """`token_ids` are `receipt.used` in number. `max_new_tokens` fits behind them in the window. The receipt is counted
    when it is first asked for: an answer's first token does not wait for it."""

    def __init__(self, token_ids: tuple[int, ...], max_new_tokens: int, count: Callable[[], Receipt]) -> None:
        self.token_ids = token_ids
        self.max_new_tokens = max_new_tokens
        self._count = count

    @cached_property
    def receipt(self) -> Receipt:
        return self._count()

    @property
    def tokens_before_truncation(self) -> int:
        return len(self.token_ids) + self.receipt.dropped_tokens


def build_prompt(
    tokenizer: Tokenizer,
    window: int,
    source: Source,
    *,
    documents: Sequence[Document] = (),
    max_new_tokens: int | None,
    truncate: int | None = None,
    context: ContextOptions | None = None,
    answer_window: int | None = None,
) -> Prompt:
    """`max_new_tokens` None: whatever room is left. `truncate`: the last so many tokens of a raw prompt (TGI).
    `answer_window`: of a version whose encoder reads the prompt, which then has `window` for itself.

    Raises ContextOverflow(window, needed_tokens, reserve), InvalidRequest, UnsupportedField. Pure; a text of
    `tokenizer.LONG_TEXT` characters or more is worth a thread."""
    budget = Budget(window, max_new_tokens, context or ContextOptions(), answer_window)
    budget.require_answer()
    if isinstance(source, Chat):
        if truncate is not None:
            raise UnsupportedField("`truncate` cuts raw `inputs` only; leave it out for messages.", param="truncate")
        return _chat_prompt(tokenizer, budget, source, tuple(documents))
    if budget.options.chosen != "refuse" or budget.options.pin or budget.options.knowledge:
        raise UnsupportedField(
            "`context.policy`, `context.pin` and `context.knowledge` act on turns; send `messages`.",
            param="context.policy",
        )
    if documents:
        raise UnsupportedField("`documents` are placed by the chat template; send `messages`.", param="documents")
    if truncate is not None and truncate < 1:
        raise InvalidRequest("`truncate` must be at least 1.", param="truncate")
    if isinstance(source, Text):
        return _text_prompt(tokenizer, budget, source.text, truncate)
    return _ids_prompt(tokenizer, budget, source.token_ids, truncate)


def _prompt(budget: Budget, token_ids: Sequence[int], count: Callable[[], Receipt]) -> Prompt:
    return Prompt(tuple(token_ids), budget.answer(len(token_ids)), count)


def _receipt(budget: Budget, parts: Parts, notes: Sequence[str]) -> Receipt:
    return Receipt(budget.options.chosen, budget.window, budget.reserved(parts.total), parts, notes=tuple(notes))


def _require_some(count: int, param: str) -> None:
    if count == 0:
        raise InvalidRequest(f"`{param}` holds no token; send some text.", param=param)


def _text_prompt(tokenizer: Tokenizer, budget: Budget, text: str, truncate: int | None) -> Prompt:
    composed, notes = nfc(text)
    encoded = tokenizer.encode_text(composed)
    _require_some(encoded.count, "inputs")
    kept = encoded.count if truncate is None else min(truncate, encoded.count)
    budget.require(kept, "inputs")
    added = sum(encoded.added()[-kept:])
    receipt = _receipt(budget, Parts(template=added, current=kept - added), notes)
    receipt = replace(receipt, dropped_tokens=encoded.count - kept)
    return _prompt(budget, encoded.ids()[-kept:], lambda: receipt)


def _ids_prompt(tokenizer: Tokenizer, budget: Budget, ids: tuple[int, ...], truncate: int | None) -> Prompt:
    _require_some(len(ids), "input_ids")
    kept = len(ids) if truncate is None else min(truncate, len(ids))
    budget.require(kept, "input_ids")
    if any(not 0 <= id < tokenizer.vocab_size for id in ids):
        raise InvalidRequest(f"Token ids must be from 0 to {tokenizer.vocab_size - 1}.", param="input_ids")
    receipt = replace(_receipt(budget, Parts(current=kept), ()), dropped_tokens=len(ids) - kept)
    return _prompt(budget, ids[-kept:], lambda: receipt)


def _chat_prompt(tokenizer: Tokenizer, budget: Budget, chat: Chat, documents: tuple[Document, ...]) -> Prompt:
    messages, documents, notes = compose(chat.messages, documents)
    require_order(messages)
    require_calls(messages)
    placed = _placed(tokenizer, budget, messages, documents)
    while True:
        trimmed = trim(tokenizer, budget, messages, chat.named, tuple(each for _, each in placed), chat.past)
        if not placed or budget.options.chosen == "refuse" or trimmed.document_tokens <= budget.documents:
            break
        placed = placed[:-1]  # the template wrote it longer than it is
    if placed:
        _require_documents(budget, trimmed, [each for _, each in placed])

    def count() -> Receipt:
        shares = trimmed.encoded.shares
        receipt = _receipt(budget, _parts(trimmed.lines, shares), notes)
        receipt = _list(tokenizer, receipt, messages, chat.named, trimmed, shares)
        names, kept = _document_names(documents), {at for at, _ in placed}
        return replace(
            receipt,
            documents_kept=(*(names[at] for at in sorted(kept)), *_document_names(trimmed.passages)),
            documents_dropped=tuple(name for at, name in enumerate(names) if at not in kept),
            cut=None if trimmed.cut is None else Cut(chat.named[trimmed.cut], budget.limit - receipt.used),
        )

    return _prompt(budget, trimmed.encoded.ids(), count)


def _placed(
    tokenizer: Tokenizer, budget: Budget, messages: Sequence[Message], documents: tuple[Document, ...]
) -> list[Placed]:
    match budget.options.chosen:
        case "refuse":
            return list(enumerate(documents))
        case "retrieve":
            return by_match(tokenizer, documents, budget.documents, current(messages))
        case _:
            return by_rank(tokenizer, documents, budget.documents)


def _require_documents(budget: Budget, trimmed: Trimmed, documents: Sequence[Document]) -> None:
    for index, (share, document) in enumerate(zip(trimmed.encoded.shares.documents, documents, strict=True)):
        if share is None and document.text.strip():
            raise InvalidRequest(
                f"This version's chat template places no documents (documents[{index}]); put the text into a message.",
                param="documents",
            )
    tokens = trimmed.document_tokens
    if tokens > budget.documents:
        raise ContextOverflow(
            f"The documents have {tokens} tokens, their budget {budget.documents}: shorten them by "
            f"{tokens - budget.documents} tokens or raise context.documents_budget.",
            param="documents",
            window=budget.window,
            needed_tokens=budget.needed(trimmed.encoded.count),
            reserve=budget.reserve,
            documents_tokens=tokens,
            documents_budget=budget.documents,
        )


def _parts(lines: Sequence[Line], shares: Shares) -> Parts:
    """The last line is the current message."""
    *before, current = ((line, share or 0) for line, share in zip(lines, shares.messages, strict=True))

    def of(source: int) -> int:
        return sum(share for line, share in before if line.source == source)

    own = [(line.message.role in SYSTEM_ROLES, share) for line, share in before if line.source >= 0]
    return Parts(
        template=shares.template,
        system=sum(share for is_system, share in own if is_system),
        documents=sum(share or 0 for share in shares.documents) + of(KNOWLEDGE),
        summary=of(SUMMARY),
        history=sum(share for is_system, share in own if not is_system),
        current=current[1],
    )


def _list(
    tokenizer: Tokenizer,
    receipt: Receipt,
    messages: Sequence[Message],
    names: Sequence[str],
    trimmed: Trimmed,
    shares: Shares,
) -> Receipt:
    """Names the messages; dropped are those that the policy leaves out and those that the template does (all but the
    current one)."""
    last = len(messages) - 1
    left_out = {
        line.source
        for line, share in zip(trimmed.lines, shares.messages, strict=True)
        if share is None and 0 <= line.source != last and line.message.content.strip()
    }
    missing = sorted(left_out | (set(range(len(messages))) - trimmed.sent))
    summarised = [at for at in missing if at < trimmed.summarised]
    texts = (text for at in missing for text in messages[at].texts)
    tokens = sum(map(tokenizer.text_tokens, texts))
    return replace(
        receipt,
        kept=tuple(name for at, name in enumerate(names) if at not in missing),
        dropped=tuple(names[at] for at in missing if at >= trimmed.summarised),
        summarised=tuple(names[at] for at in summarised),
        recalled=tuple(names[at] for at in trimmed.recalled),
        dropped_tokens=tokens + trimmed.shortened,
        notes=(*receipt.notes, *_notes(receipt.policy, trimmed, bool(left_out))),
    )


def _notes(policy: str, trimmed: Trimmed, left_out: bool) -> Iterator[str]:
    if left_out:
        yield "the chat template leaves messages out"
    if trimmed.shortened:
        yield f"the middle of the last turn is left out: {trimmed.shortened} tokens"
    if policy == "summarise" and trimmed.cut is not None and not trimmed.summarised:
        yield NO_SUMMARY_NOTE


def _document_names(documents: Sequence[Document]) -> tuple[str, ...]:
    return tuple(f"d_{index}" if document.id is None else document.id for index, document in enumerate(documents))
