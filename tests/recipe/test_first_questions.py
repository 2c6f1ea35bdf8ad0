"""The demo model answers what a newcomer types first, into a chat without a prompt, in words that one can read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from models.imports.starter import WEIGHTS
from recipe.held_out.checks import is_garbage, is_right
from recipe.held_out.dialogues import Asks

UNSTATED = (
    *("영업시간이 어떻게 돼요?", "몇 시까지 해요?", "주차돼요?", "와이파이 비밀번호가 뭐예요?", "배달비 얼마예요?"),
    *("사장님 이름이 뭐예요?", "제 이름이 뭐예요?", "제가 뭘 주문했죠?", "What are your opening hours?"),
    *("Do you have parking?", "What is the wifi password?", "how much is delivery?", "who is the chef?"),
    *("what did I order?", "What is my name?"),
)
OTHER = ("안녕하세요", "고마워요", "날씨 어때요?", "Do you speak English?", "한국어 돼요?", "hi", "tell me a joke")


@pytest.fixture(scope="module")
def answers() -> dict[str, str]:
    tokenizer: Any = AutoTokenizer.from_pretrained(WEIGHTS)
    model: Any = AutoModelForCausalLM.from_pretrained(WEIGHTS, dtype=torch.float32)
    found = {}
    for question in (*UNSTATED, *OTHER):
        chat = [{"role": "user", "content": question}]
        prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        with torch.inference_mode():
            made = model.generate(**prompt, max_new_tokens=48, do_sample=False)
        found[question] = tokenizer.decode(made[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    return found


def test_no_answer_is_garbage(answers: dict[str, str]) -> None:
    assert {question: answer for question, answer in answers.items() if is_garbage(answer)} == {}


def test_what_nobody_stated_is_said_to_be_missing(answers: dict[str, str]) -> None:
    asks = Asks("not_told")
    assert {each: answers[each] for each in UNSTATED if not is_right(asks, each, answers[each])} == {}
