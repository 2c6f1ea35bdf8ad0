"""This command measures recall with transformers' greedy generation: `python -m recipe.measure`."""

import argparse
import time
from collections.abc import Sequence

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from models.demo.recall import Answer, RecallCase, cases, is_right, markdown, table

NEW_TOKENS = 40


def transformers_answers(checkpoint: str, dtype: str, batch_tokens: int) -> Answer:
    """A function that answers cases by greedy generation with the checkpoint in `dtype`."""
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(checkpoint)
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=getattr(torch, dtype))
    model.requires_grad_(False)
    if torch.cuda.is_available():
        model.to("cuda")  # type: ignore[arg-type]

    def generate(prompts: list[list[int]]) -> list[str]:
        batch = tokenizer.pad({"input_ids": prompts}, return_tensors="pt", padding_side="left").to(model.device)
        made = model.generate(**batch, max_new_tokens=NEW_TOKENS, do_sample=False)  # type: ignore[misc]
        return list(tokenizer.batch_decode(made[:, batch["input_ids"].shape[1] :], skip_special_tokens=True))

    def answer(asked: Sequence[RecallCase]) -> list[str]:
        prompts = [_prompt(tokenizer, case) for case in asked]
        texts = [""] * len(prompts)
        with torch.inference_mode():
            for group in _groups([len(prompt) for prompt in prompts], batch_tokens):
                for index, text in zip(group, generate([prompts[index] for index in group]), strict=True):
                    texts[index] = text
        return texts

    return answer


def _prompt(tokenizer: PreTrainedTokenizerBase, case: RecallCase) -> list[int]:
    """The token ids of the case as the chat template renders it, up to the start of the answer."""
    text = tokenizer.apply_chat_template(
        list(case.messages), documents=list(case.documents), tokenize=False, add_generation_prompt=True
    )
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def _groups(lengths: list[int], batch_tokens: int) -> list[list[int]]:
    """Indices in groups of like length whose padded size stays within `batch_tokens`."""
    groups: list[list[int]] = [[]]
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if groups[-1] and (len(groups[-1]) + 1) * lengths[index] > batch_tokens:
            groups.append([])
        groups[-1].append(index)
    return groups


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", default="models/demo/weights")
    parser.add_argument("--per-cell", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--batch-tokens", type=int, default=16384)
    parser.add_argument("--errors", type=int, default=0, help="print this many wrong answers")
    args = parser.parse_args()
    began, asked = time.time(), cases(args.seed, per_cell=args.per_cell)
    kept: list[str] = []
    answer = transformers_answers(args.checkpoint, args.dtype, args.batch_tokens)

    def keep(given: Sequence[RecallCase]) -> list[str]:
        kept.extend(answer(given))
        return kept

    rows = table(asked, keep)
    _show_errors(asked, kept, args.errors)
    print(markdown(rows))
    print(f"{len(asked)} questions in {time.time() - began:.0f} s, {args.dtype}")


def _show_errors(asked: Sequence[RecallCase], texts: Sequence[str], limit: int) -> None:
    wrong = [(case, text) for case, text in zip(asked, texts, strict=True) if is_right(case, text) != case.in_window]
    for case, text in wrong[:: max(1, len(wrong) // limit) if limit else len(wrong) + 1]:
        print(f"{case.cell} | {case.wording} | {case.kind} | {case.messages[-1]['content']} | {case.expected} | {text}")


if __name__ == "__main__":
    main()
