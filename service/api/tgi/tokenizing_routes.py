"""These routes turn text and chats into the tokens that the model would receive, and tokens into text. The text is put
into NFC first, as for the model; positions count the characters of that. Counts go past the window."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from fastapi import Request
from starlette.responses import Response

from service.api.deps import Service, ServiceDep, Text
from service.api.http.bodies import json_body
from service.api.http.connection import while_connected
from service.api.http.documented import Router
from service.api.http.encoding import json_response
from service.api.shared.chat_schemas import use_of
from service.api.tgi.answer_schemas import ChatTokens, Detokenized, TextToken, TokenizeCount, TokenizerInfo
from service.api.tgi.schemas import ChatTokenizeBody, DetokenizeBody, TokenizeBody
from service.context.composition import compose, nfc
from service.deployments.deployment import Deployment
from service.errors import InvalidRequest
from service.generation.features import check_placed, refuse_described
from service.text.messages import ChatOptions
from service.text.tokenizer import Tokenizer

router = Router(tags=["tokenize"])
TOKENIZE: Final = json_body(TokenizeBody)
DETOKENIZE: Final = json_body(DetokenizeBody)
CHAT_TOKENIZE: Final = json_body(ChatTokenizeBody)
NAMED: Final = ("bos_token", "eos_token", "pad_token", "unk_token")


@router.post("/tokenize", response_model=list[TextToken] | TokenizeCount)
async def tokenize(http: Request, service: ServiceDep, body: TokenizeBody = TOKENIZE) -> Response:
    """Tokenizes: `inputs` gives TGI's list of tokens; `prompt` or `messages` gives vLLM's count and ids."""

    def read(deployment: Deployment) -> Any:
        if not service.settings.generic_tools:
            messages = [each.message() for each in body.messages or ()]
            refuse_described(deployment, messages, has_tools=bool(body.tools))
        return _tokenized(deployment, body)

    return await _answer(http, service, body.model, read)


async def _answer(http: Request, service: Service, model: str | None, read: Callable[[Deployment], Any]) -> Response:
    model = service.deployments.allowed(http.state.models, model)
    return json_response(await while_connected(http.receive, service.answers.read(model, http.state.owner, read)))


def _tokenized(deployment: Deployment, body: TokenizeBody) -> Any:
    tokenizer = deployment.tokenizer
    if body.inputs is not None:
        rows = tokenizer.encode_with_offsets(nfc(body.inputs)[0], add_special_tokens=body.add_special_tokens)
        return [_row(*row) for row in rows]
    if body.messages is not None:
        chat, _, _ = compose([each.message() for each in body.messages], ())
        ids = _with_tools(deployment, body).render_chat(chat, add_generation_prompt=body.add_generation_prompt)
    else:
        ids = tokenizer.encode(nfc(body.prompt or "")[0], add_special_tokens=body.add_special_tokens)
    return {"count": len(ids), "max_model_len": deployment.window, "tokens": ids}


def _with_tools(deployment: Deployment, body: TokenizeBody) -> Tokenizer:
    """Returns the tokenizer for chats with the body's tools. Raises InvalidRequest for two of one name, and
    UnsupportedField where the template places none."""
    use = use_of(tuple(each.tool() for each in body.tools or ()), "auto", None, is_parallel=True)
    options = ChatOptions(continues=body.continue_final_message)
    tokenizer = deployment.tokenizer.with_options(options)
    if use is None:
        return tokenizer
    tokenizer = tokenizer.with_options(replace(options, tools=use.tools))
    check_placed(tokenizer, deployment)
    return tokenizer


@router.post("/detokenize", response_model=Detokenized)
async def detokenize(http: Request, service: ServiceDep, body: DetokenizeBody = DETOKENIZE) -> Response:
    """Returns, as vLLM, the text of token ids. Bytes that complete no character become U+FFFD."""
    return await _answer(http, service, body.model, lambda deployment: _detokenized(deployment.tokenizer, body))


def _detokenized(tokenizer: Tokenizer, body: DetokenizeBody) -> dict[str, str]:
    unknown = max(body.tokens, default=0)
    if unknown >= tokenizer.vocab_size:
        raise InvalidRequest(
            f"`tokens` holds {unknown}, which is no token id of this model; ids run from 0 to "
            f"{tokenizer.vocab_size - 1}: leave it out, or name the model that gave it",
            param="tokens",
            vocab_size=tokenizer.vocab_size,
        )
    return {"prompt": tokenizer.decode(body.tokens, skip_special_tokens=body.skip_special_tokens)}


@router.get("/tokenizer_info", response_model=TokenizerInfo)
async def tokenizer_info(http: Request, service: ServiceDep, model: Text | None = None) -> Response:
    """Returns, under vLLM's names, what a client needs to write prompts as the version's tokenizer does."""
    return await _answer(http, service, model, lambda deployment: _info(deployment.tokenizer))


def _info(tokenizer: Tokenizer) -> dict[str, Any]:
    named = {name: tokenizer.named_token(name) for name in NAMED}
    length = tokenizer.model_max_length or None
    facts = {"chat_template": tokenizer.chat_template, "model_max_length": length}
    return {"tokenizer_class": tokenizer.class_name, **named, **facts}


@router.post("/chat_tokenize", response_model=ChatTokens)
async def chat_tokenize(http: Request, service: ServiceDep, body: ChatTokenizeBody = CHAT_TOKENIZE) -> Response:
    """Returns, as TGI, the chat as the template writes it, with the generation prompt, and its tokens with their
    positions."""
    return await _answer(http, service, body.model, lambda deployment: _chat_tokenized(deployment.tokenizer, body))


def _chat_tokenized(tokenizer: Tokenizer, body: ChatTokenizeBody) -> dict[str, Any]:
    given = [each.document() for each in body.documents or ()]
    chat, documents, _ = compose([each.message() for each in body.messages], given)
    ids = tokenizer.render_chat(chat, documents=documents)
    stream, rows, at = tokenizer.text_stream(skip_special_tokens=False), [], 0
    for token_id in ids:
        text = stream.push(token_id)
        rows.append(_row(token_id, text, at, at + len(text)))
        at += len(text)
    return {"tokenize_response": rows, "templated_text": "".join(row["text"] for row in rows)}


def _row(token_id: int, text: str, start: int, stop: int) -> dict[str, Any]:
    return {"id": token_id, "text": text, "start": start, "stop": stop}
