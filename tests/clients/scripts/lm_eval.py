"""lm-eval: log-likelihoods of continuations by `local-completions`, with the server's own tokenizer."""

from __future__ import annotations

import json
import sys
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI


def main(url: str, pairs: list[list[str]]) -> dict[str, Any]:
    model = LocalCompletionsAPI(
        model="exact", base_url=f"{url}/v1/completions", tokenizer_backend="remote", batch_size=4, max_length=512
    )
    asked = [
        Instance("loglikelihood", {}, (context, continuation), index)
        for index, (context, continuation) in enumerate(pairs)
    ]
    rolling = [Instance("loglikelihood_rolling", {}, (pairs[0][0] + pairs[0][1],), 0)]
    until: dict[str, Any] = {"until": ["."], "max_gen_toks": 8, "temperature": 0}
    generated = [Instance("generate_until", {}, (pairs[0][0], until), 0)]
    return {
        "ids": [[model.tok_encode(context), model.tok_encode(context + rest)] for context, rest in pairs],
        "loglikelihood": model.loglikelihood(asked),
        "rolling": model.loglikelihood_rolling(rolling),
        "generated": model.generate_until(generated),
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], json.loads(sys.argv[2])), ensure_ascii=False))
