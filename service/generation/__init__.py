"""The package turns a generation request into its answer, token by token. It knows text, engines and versions; no HTTP.

GenerationRequest ─▶ Answers.stream ─▶ Delta, Delta, … (the last has `last` set); closing the stream aborts the engine's
  choose_loaded ─▶ build_prompt ─▶ admission ─▶ n sequences of one prompt ─▶ detokenizer ─▶ one Delta a token
"""
