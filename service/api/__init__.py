"""HTTP. Each protocol has a folder: its wire models (`schemas`, `answer_schemas`), its dialect, its routes. What they
share is in `shared`, `answering` and `http`; `edge` stands around every route.

body ─▶ parse(body, …) ─▶ GenerationRequest(s) ─▶ answers ─▶ Serialiser.whole | .events | .failure ─▶ bytes

Bodies are parsed once, into pydantic models; inside the service only domain types exist. `answer_schemas` say what the
routes answer: `/openapi.json` shows them, and tests check every answer against them. No response passes through them at
run time: routes write plain values, which is many times as fast.
"""
