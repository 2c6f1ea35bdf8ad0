"""One body for each request model, which the demo model answers; the OpenAPI document and `/docs` show it. Ids are made
up: put your own in their place."""

from __future__ import annotations

from typing import Any, Final

_ASKED: Final = [{"role": "user", "content": "안녕하세요"}]
EXAMPLES: Final[dict[str, dict[str, Any]]] = {
    "GenerateBody": {"messages": _ASKED, "parameters": {"max_new_tokens": 64}},
    "TokenizeBody": {"messages": _ASKED},
    "DetokenizeBody": {"tokens": [40, 41]},
    "ChatTokenizeBody": {"messages": _ASKED},
    "DeploymentBody": {"model": "demo"},
    "ProfileBody": {"steps": 8},
    "ImportBody": {"source": "Qwen/Qwen2.5-0.5B-Instruct", "precision": "int8"},
    "QuantizeBody": {"precision": "int8"},
    "EvaluateBody": {"effort": "quick"},
    "AliasBody": {"version": "1", "reason": "it is the first", "override": True},
    "ReasonBody": {"reason": "answers became worse"},
    "RolloutBody": {"candidate": "2", "weight": 10, "guards": {"error_rate": 0.05}, "override": True},
    "ChatBody": {"messages": _ASKED, "max_tokens": 64, "temperature": 0},
    "ConversationBody": {"metadata": {"order": "7"}, "items": _ASKED},
    "ConversationItemsBody": {"items": _ASKED},
    "MetadataBody": {"metadata": {"order": "7"}},
    "CompletionBody": {"prompt": "Rice is", "max_tokens": 16},
    "EmbeddingBody": {"input": "a lunch box"},
    "ResponseBody": {"input": "안녕하세요", "max_output_tokens": 64},
    "InputTokensBody": {"input": "안녕하세요"},
    "BatchBody": {
        "input_file_id": "file-0123456789abcdef",
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    },
    "MessagesBody": {"messages": _ASKED, "max_tokens": 64},
    "CountTokensBody": {"messages": _ASKED},
    "TextBody": {"text_input": "Rice is", "parameters": {"max_tokens": 16}},
    "InferBody": {"inputs": [{"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["Rice is"]}]},
    "IndexBody": {"ready": True},
    "LoadBody": {},
    "UnloadBody": {},
    "OllamaChatBody": {"model": "demo", "messages": _ASKED, "stream": False},
    "OllamaGenerateBody": {"model": "demo", "prompt": "안녕하세요", "stream": False},
    "OllamaShowBody": {"model": "demo"},
    "OllamaEmbedBody": {"model": "demo", "input": "a lunch box"},
    "OllamaEmbeddingsBody": {"model": "demo", "prompt": "a lunch box"},
    "KnowledgeBody": {"title": "Hours", "text": "The shop opens at eleven."},
    "FeedbackBody": {"id": "gen-0123456789abcdef", "rating": 1, "comment": "short and right"},
    "SessionBody": {"title": "Lunch", "policy": "window"},
    "MessageBody": {"pinned": True},
    "ForkBody": {"at": "m_0123456789abcdef"},
    "RegenerateBody": {"parameters": {"max_new_tokens": 64}},
}
