"""The prompt of a chat that goes on from its last message ends as transformers' does; the answer keeps its blanks."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.engine.process.grammar_loading import CompiledGrammars
from service.engine.protocol.messages import SamplingParams
from service.errors import InvalidRequest
from service.text.grammars.matching import VocabularyGrammars
from service.text.messages import ChatOptions, Message
from service.text.tokenizer import Tokenizer
from tests.tokenizers import CHAT_TEMPLATE, byte_level, llama, load
from tests.tools import AS_JSON

OPEN = ChatOptions(continues=True)
KEEPING = AS_JSON
INST = (
    "{{ bos_token }}{% for message in messages %}{% if message.role == 'user' %}[INST] {{ message.content }} [/INST]"
    "{% else %} {{ message.content | trim }} {{ eos_token }}{% endif %}{% endfor %}"
)
TEMPLATES = {"trims": CHAT_TEMPLATE, "keeps": KEEPING, "inst": INST}
CONTENTS = ("Once", "Once ", "Once there\n", "  Once", "도시락은", "<|im_end|> said", "x" * 40, "hello hello")


@pytest.mark.parametrize("template", TEMPLATES)
def test_prompts_end_as_transformers_continue_final_message(tmp_path: Path, template: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    tokenizer = load(tmp_path, chat_template=TEMPLATES[template]).with_options(OPEN)
    for content in CONTENTS:
        chat = [Message("user", "hello"), Message("assistant", content)]
        plain = [{"role": each.role, "content": each.content} for each in chat]
        rendered = render_jinja_template(
            [plain],
            chat_template=TEMPLATES[template],
            continue_final_message=True,
            bos_token="<s>",
            eos_token="</s>",
        )
        encoded = tokenizer.encode_chat(chat)
        assert tokenizer.decode(list(encoded.ids()), skip_special_tokens=False) == rendered[0][0], content
        assert encoded.count == tokenizer.chat_tokens(chat) == sum((encoded.shares.template, *encoded.shares.messages))  # type: ignore[arg-type]
        assert encoded.shares.messages[-1]


def test_a_message_that_the_template_changes_is_refused(tmp_path: Path) -> None:
    template = CHAT_TEMPLATE.replace("message.content | trim", "message.content[:5] | trim")
    with pytest.raises(InvalidRequest, match="no answer can go on"):
        load(tmp_path, chat_template=template).with_options(OPEN).render_chat(
            [Message("user", "hello"), Message("assistant", "Once there")]
        )


@pytest.mark.parametrize("rust", [byte_level, llama])
def test_the_answers_first_token_keeps_its_blank(tmp_path: Path, rust: object) -> None:
    tokenizer: Tokenizer = load(tmp_path, rust())  # type: ignore[operator]
    ids = tokenizer.encode("a hah", add_special_tokens=False)
    for cut in range(1, len(ids)):
        stream = tokenizer.text_stream(inside=True)
        text = "".join(map(stream.push, ids[cut:])) + stream.finish()
        assert tokenizer.decode(ids[:cut]) + text == tokenizer.decode(ids), cut


def test_a_grammar_goes_on_behind_the_text() -> None:
    compiled = CompiledGrammars(VocabularyGrammars.of_letters())
    grammar = 'start: "ab" ("cd" | "xy")'
    constraint = compiled.constraint(SamplingParams(max_tokens=9, grammar=grammar, grammar_begun="abc"))
    assert constraint is not None and constraint.certain() == (ord("d"),)
    fresh = compiled.constraint(SamplingParams(max_tokens=9, grammar=grammar))
    assert fresh is not None and fresh.certain() != constraint.certain()
    with pytest.raises(ValueError, match="does not begin so"):
        compiled.constraint(SamplingParams(max_tokens=9, grammar=grammar, grammar_begun="q"))
