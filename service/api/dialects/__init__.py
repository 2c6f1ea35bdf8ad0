"""A dialect is a pair around the one request type: a parser and a serialiser. It knows wire models; no HTTP, no engine.

body ─▶ parse(body, …) ─▶ GenerationRequest(s) ─▶ answers ─▶ Serialiser.whole | .events | .failure ─▶ bytes
"""

from service.api.paths import ErrorDialect, error_dialect

__all__ = ["ErrorDialect", "error_dialect"]
