// Types of Dosirak's HTTP interface, made by `make types` from the OpenAPI document. Do not edit.

export type AliasBody = { "version": (string | number); "reason"?: string; "override"?: boolean };

/** `version` is null where the alias was removed. */
export type AliasShown = { "model": string; "alias": string; "version": (string | null); "change": Change };

export type Aliases = { "data": Record<string, string> };

/** What was measured within the time. */
export type AmountsShown = { "texts": number; "answers": number; "answer_tokens": number; "questions": number; "rounds": number; "prefill_tokens": number; "prompt_tokens": number };

export type AnthropicError = { "type": "error"; "error": { "message": string | null; "type": string | null; "param": string | null; "code": string | null }; "request_id": string };

/** The data of one event, whose name is its `type`. A stream that fails ends with `error`. */
export type AnthropicEvent = (MessageStart | BlockStart | BlockDelta | BlockStop | AnthropicMessageDelta | MessageStop | Ping | AnthropicError);

export type AnthropicJsonFormat = { "type": "json_schema"; "schema": Record<string, unknown> };

/** A whole answer; in a stream's first event without content and stop reason. `model` is the version that
answers. */
export type AnthropicMessage = { "finish_detail"?: ("deadline" | "error" | null); "digest"?: (string | null); "context"?: (Receipt | null); "timings"?: (Timings | null); "guard"?: ((GuardFinding)[] | null); "session_id"?: (string | null); "id": string; "type": "message"; "role": "assistant"; "model": string; "content": ((ThinkingContent | TextContent | ToolUseContent))[]; "stop_reason": ("end_turn" | "max_tokens" | "stop_sequence" | "tool_use" | "refusal" | "model_context_window_exceeded" | null); "stop_sequence": (string | null); "usage": AnthropicUsage };

export type AnthropicMessageDelta = { "finish_detail"?: ("deadline" | "error" | null); "digest"?: (string | null); "context"?: (Receipt | null); "timings"?: (Timings | null); "guard"?: ((GuardFinding)[] | null); "session_id"?: (string | null); "type": "message_delta"; "delta": StopDelta; "usage": AnthropicUsage };

export type AnthropicMetadata = { "user_id"?: (string | null) };

/** A version or a name. `max_input_tokens` and `max_tokens` are the window. */
export type AnthropicModel = { "type": "model"; "id": string; "display_name": string; "created_at": string; "lifecycle": "active"; "max_input_tokens": number; "max_tokens": number; "digest": string };

/** One page. `first_id` and `last_id` are null where it is empty. */
export type AnthropicModels = { "data": (AnthropicModel)[]; "has_more": boolean; "first_id": (string | null); "last_id": (string | null) };

export type AnthropicTextDelta = { "type": "text_delta"; "text": string };

/** A function that the model may call. A call of a `strict` one keeps its schema, and so does every forced call.
`eager_input_streaming` asks for what happens anyway: input is streamed as it is written. */
export type AnthropicTool = { "name": string; "input_schema": Record<string, unknown>; "description"?: (string | null); "type"?: ("custom" | null); "strict"?: (boolean | null); "eager_input_streaming"?: (boolean | null); "cache_control"?: (CacheControl | null) };

export type AnthropicToolChoice = { "type": "auto" | "any" | "tool" | "none"; "name"?: (string | null); "disable_parallel_tool_use"?: (boolean | null) };

/** `output_tokens`: every sampled token, with end tokens and stop sequences. `output_tokens_details` is there where
the answer may have thinking. */
export type AnthropicUsage = { "input_tokens": number; "cache_read_input_tokens": number; "cache_creation_input_tokens": number; "output_tokens": number; "output_tokens_details"?: (ThinkingTokens | null); "service_tier": "standard" };

export type ArgumentsDelta = { "sequence_number": number; "item_id": string; "output_index": number; "type": "response.function_call_arguments.delta"; "delta": string };

export type ArgumentsDone = { "sequence_number": number; "item_id": string; "output_index": number; "type": "response.function_call_arguments.done"; "name": string; "arguments": string };

/** `content` is null where the answer is calls only. `reasoning_content` is what the model wrote for itself. */
export type AssistantMessage = { "role": "assistant"; "content": (string | null); "refusal": null; "reasoning_content"?: (string | null); "tool_calls"?: ((CalledTool)[] | null) };

/** Newest first. */
export type AuditPage = { "data": (AuditRow)[]; "next_cursor": (string | null) };

/** `previous` is the hash of the row before, `hash` that of this row. `owner` is a key's id, `name` the key's; of
what was refused one row tells `detail.times` of a minute. What is `begun` ends in another row, or as a job. */
export type AuditRow = { "number": number; "at": string; "action": string; "outcome": "begun" | "done" | "refused" | "failed"; "subject": string; "owner": string; "name": string; "peer": string; "instance": string; "request_id": string; "detail": Record<string, unknown>; "previous": string; "hash": string };

/** A batch: a file of requests for one endpoint, answered within a day. */
export type BatchBody = { "input_file_id": string; "endpoint": string; "completion_window": "24h"; "metadata"?: (Record<string, string> | null); "output_expires_after"?: (ExpiresAfter | null) };

export type BatchCounts = { "total": number; "completed": number; "failed": number };

export type BatchError = { "code": string; "message": string; "param": (string | null); "line": (number | null) };

export type BatchErrors = { "object": "list"; "data": (BatchError)[] };

/** Newest first. */
export type BatchPage = { "object": "list"; "data": (BatchShown)[]; "first_id": (string | null); "last_id": (string | null); "has_more": boolean };

/** Seconds since 1970; null for what has not come. `errors` says why the file was not taken. */
export type BatchShown = { "id": string; "object": "batch"; "endpoint": string; "errors": (BatchErrors | null); "input_file_id": string; "completion_window": "24h"; "status": "validating" | "failed" | "in_progress" | "finalizing" | "completed" | "expired" | "cancelling" | "cancelled"; "output_file_id": (string | null); "error_file_id": (string | null); "created_at": number; "in_progress_at": (number | null); "expires_at": number; "finalizing_at": (number | null); "completed_at": (number | null); "failed_at": (number | null); "expired_at": (number | null); "cancelling_at": (number | null); "cancelled_at": (number | null); "request_counts": BatchCounts; "metadata": (Record<string, string> | null) };

export type Batching = { "data": (BatchingOfVersion)[] };

export type BatchingOfVersion = { "model": string; "state": string; "steps": number; "cost": StepCost; "last_step": Step; "decisions": Decisions };

export type BinarySize = { "binary_data_size": number };

export type BlockDelta = { "type": "content_block_delta"; "index": number; "delta": (ThinkingDelta | SignatureDelta | AnthropicTextDelta | InputJsonDelta) };

export type BlockStart = { "type": "content_block_start"; "index": number; "content_block": (ThinkingContent | TextContent | ToolUseContent) };

export type BlockStop = { "type": "content_block_stop"; "index": number };

/** Blocks of the KV cache in memory; `cached` of them hold a known prefix; `offloaded` blocks are on disk. */
export type Blocks = { "total": number; "free": number; "cached": number; "offloaded": number };

/** Accepted without an effect: this server keeps the blocks of every prompt while there is room. */
export type CacheControl = { "type": "ephemeral"; "ttl"?: ("5m" | "1h" | null) };

export type CachedTokens = { "cached_tokens": number };

/** `id`, `type` and the name come with the first delta of a call, then its arguments, piece by piece. */
export type CallDelta = { "index": number; "id"?: (string | null); "type"?: ("function" | null); "function": FunctionDelta };

/** `arguments` is a JSON object as text. */
export type CalledFunction = { "name": string; "arguments": string };

export type CalledTool = { "id": string; "type": "function"; "function": CalledFunction };

/** The promotion of a rollout's candidate. */
export type CandidateBody = { "reason"?: string; "override"?: boolean };

/** One change of an alias. `overridden` has the limits of the gate that the version broke. */
export type Change = { "action": "promote" | "rollback" | "remove" | "delete"; "alias": (string | null); "version": (string | null); "previous": (string | null); "reason": string; "actor": string; "time": string; "overridden": (string)[] };

export type Changes = { "data": (Change)[] };

export type ChatBody = { "min_p"?: (number | null); "typical_p"?: (number | null); "top_n_sigma"?: (number | null); "repetition_penalty"?: (number | null); "frequency_penalty"?: (number | null); "presence_penalty"?: (number | null); "logit_bias"?: (Record<string, number> | null); "model"?: (string | null); "stream"?: (boolean | null); "stream_options"?: (StreamOptions | null); "temperature"?: (number | null); "top_p"?: (number | null); "n"?: (number | null); "seed"?: (number | null); "stop"?: (string | (string)[] | null); "user"?: (string | null); "safety_identifier"?: (string | null); "prompt_cache_key"?: (string | null); "cache_salt"?: (string | null); "metadata"?: (Record<string, string> | null); "stop_token_ids"?: ((number)[] | null); "ignore_eos"?: (boolean | null); "min_tokens"?: (number | null); "top_k"?: (number | null); "include_stop_str_in_output"?: (boolean | null); "skip_special_tokens"?: (boolean | null); "response_format"?: (ResponseFormat | null); "structured_outputs"?: (StructuredOutputs | null); "guided_json"?: ((Record<string, unknown> | string | boolean) | null); "guided_regex"?: (string | null); "guided_choice"?: ((string)[] | null); "guided_grammar"?: (string | null); "context"?: (ContextFields | null); "priority"?: (number | null); "deadline_ms"?: (number | null); "request_id"?: (string | null); "messages": (ChatMessage)[]; "store"?: (boolean | null); "session_id"?: (string | null); "max_completion_tokens"?: (number | null); "max_tokens"?: (number | null); "logprobs"?: (boolean | null); "top_logprobs"?: (number | null); "documents"?: ((DocumentText)[] | null); "tools"?: ((ToolFields)[] | null); "tool_choice"?: (string | NamedTool | null); "parallel_tool_calls"?: (boolean | null); "reasoning_effort"?: ("none" | "minimal" | "low" | "medium" | "high" | "xhigh" | null); "chat_template_kwargs"?: (Record<string, unknown> | null); "continue_final_message"?: (boolean | null); "add_generation_prompt"?: (boolean | null) };

/** `finish_detail` is our own word where OpenAI has none: `deadline` or `error`. */
export type ChatChoice = { "digest"?: (string | null); "context"?: (Receipt | null); "timings"?: (Timings | null); "guard"?: ((GuardFinding)[] | null); "index": number; "message": AssistantMessage; "logprobs": (ChatLogprobs | null); "finish_reason": "stop" | "length" | "content_filter" | "tool_calls"; "finish_detail"?: ("deadline" | "error" | null) };

/** The data of one event; the stream ends with `data: [DONE]`. A failure is `{"error": …}` before it. */
export type ChatChunk = { "digest"?: (string | null); "context"?: (Receipt | null); "timings"?: (Timings | null); "guard"?: ((GuardFinding)[] | null); "id": string; "object": "chat.completion.chunk"; "created": number; "model": string; "system_fingerprint": string; "choices": (ChatChunkChoice)[]; "usage"?: (OpenAIUsage | null) };

export type ChatChunkChoice = { "index": number; "delta": MessageDelta; "logprobs": (ChatLogprobs | null); "finish_reason": ("stop" | "length" | "content_filter" | "tool_calls" | null); "finish_detail"?: ("deadline" | "error" | null) };

export type ChatCompletion = { "digest"?: (string | null); "context"?: (Receipt | null); "timings"?: (Timings | null); "guard"?: ((GuardFinding)[] | null); "id": string; "object": "chat.completion"; "created": number; "model": string; "system_fingerprint": string; "choices": (ChatChoice)[]; "usage": OpenAIUsage };

export type ChatLogprobs = { "content": (ChatTokenLogprob)[]; "refusal": null };

/** One message. `content` is a string or text parts; an assistant's or a tool's message may have none. In a tool's
message `tool_call_id` names the call that it is the result of. */
export type ChatMessage = { "role": "system" | "developer" | "user" | "assistant" | "tool"; "content"?: (string | ({ "type": "text"; "text": string })[] | null); "name"?: (string | null); "reasoning_content"?: (string | null); "reasoning"?: (string | null); "tool_calls"?: ((ToolCallFields)[] | null); "tool_call_id"?: (string | null); "parsed"?: unknown };

/** `bytes` are the token's own, also where it is a part of a character, which `token` shows as U+FFFD; null where
they are not known. */
export type ChatToken = { "token": string; "logprob": (number | null); "bytes": ((number)[] | null) };

export type ChatTokenLogprob = { "token": string; "logprob": (number | null); "bytes": ((number)[] | null); "top_logprobs": (ChatToken)[] };

export type ChatTokenizeBody = { "messages": (ChatMessage)[]; "model"?: (string | null); "documents"?: ((DocumentText)[] | null) };

export type ChatTokens = { "tokenize_response": (TextToken)[]; "templated_text": string };

/** One figure against its limit. `value` compares with the version `of`; its 95 % interval is from `low` to
`high`. */
export type CheckShown = { "measure": string; "of": string; "value": number; "low": number; "high": number; "limit": number; "passes": boolean; "sentence": string };

export type ChoiceToken = { "id": number; "text": string; "logprob": number };

/** `choice` is the likeliest of `choices`, which have the request's order. */
export type ChoicesAnswer = { "choice": string; "choices": (ScoredText)[]; "id": string; "model": string; "version": string; "digest": string; "usage": Usage; "timings": Timings; "context": Receipt };

export type ComparedProfile = { "id": string; "model": string; "digest": string; "kind": string; "steps_done": number; "tokens": number; "seconds_per_step": number };

/** `operators`: the largest difference first, slower or faster. */
export type ComparedProfiles = { "a": ComparedProfile; "b": ComparedProfile; "operators": (OperatorDifference)[] };

export type ComparedVersions = { "a": VersionShown; "b": VersionShown; "differs": (string)[]; "files": SameFiles };

/** The comparison with the parent on the same text; `kl` in nats, `decode_ratio` by batch size. `clear` is the share
of the positions where the parent's likeliest token leads by 0.2 nats, `clear_top1_agreement` the share of these
with the same likeliest token; null in reports of earlier releases. `greedy_agreement` is null in a check. */
export type ComparisonShown = { "reference": string; "digest": string; "perplexity_change": number; "kl": number; "top1_agreement": number; "greedy_agreement": (number | null); "decode_ratio": Record<string, number>; "clear_top1_agreement"?: (number | null); "clear"?: (number | null) };

export type CompletionBody = { "min_p"?: (number | null); "typical_p"?: (number | null); "top_n_sigma"?: (number | null); "repetition_penalty"?: (number | null); "frequency_penalty"?: (number | null); "presence_penalty"?: (number | null); "logit_bias"?: (Record<string, number> | null); "model"?: (string | null); "stream"?: (boolean | null); "stream_options"?: (StreamOptions | null); "temperature"?: (number | null); "top_p"?: (number | null); "n"?: (number | null); "seed"?: (number | null); "stop"?: (string | (string)[] | null); "user"?: (string | null); "safety_identifier"?: (string | null); "prompt_cache_key"?: (string | null); "cache_salt"?: (string | null); "metadata"?: (Record<string, string> | null); "stop_token_ids"?: ((number)[] | null); "ignore_eos"?: (boolean | null); "min_tokens"?: (number | null); "top_k"?: (number | null); "include_stop_str_in_output"?: (boolean | null); "skip_special_tokens"?: (boolean | null); "response_format"?: (ResponseFormat | null); "structured_outputs"?: (StructuredOutputs | null); "guided_json"?: ((Record<string, unknown> | string | boolean) | null); "guided_regex"?: (string | null); "guided_choice"?: ((string)[] | null); "guided_grammar"?: (string | null); "context"?: (ContextFields | null); "priority"?: (number | null); "deadline_ms"?: (number | null); "request_id"?: (string | null); "prompt": (string | (string)[] | (number)[] | ((number)[])[]); "add_special_tokens"?: (boolean | null); "max_tokens"?: (number | null); "best_of"?: (number | null); "echo"?: (boolean | null); "logprobs"?: (number | null) };

/** One block; `type` decides which of the other fields it has. Thinking is accepted and not sent to the model again.
`is_error` puts `Error: ` before a tool's result. */
export type ContentBlock = { "type": "text" | "tool_use" | "tool_result" | "thinking" | "redacted_thinking"; "text"?: (string | null); "id"?: (string | null); "name"?: (string | null); "input"?: (Record<string, unknown> | null); "tool_use_id"?: (string | null); "content"?: (string | (TextOnlyBlock)[] | null); "is_error"?: (boolean | null); "thinking"?: (string | null); "signature"?: (string | null); "data"?: (string | null); "cache_control"?: (CacheControl | null) };

/** Accepted without an effect: thinking of earlier answers is never sent again. */
export type ContextEdit = { "type": "clear_thinking_20251015"; "keep"?: ("all" | Record<string, unknown> | null) };

/** How the prompt is fitted into the window. `refuse`, the default, refuses what does not fit, with the numbers;
`window` leaves the oldest turns out; `middle` leaves out the turns behind the first, and the middle of an overlong
question; `summarise` puts a summary in their place, `retrieve` those old turns that match the question. `pin`:
messages that stay, `m_0`, `m_1`, … by position. `inspect`: the receipt also lists every message with what became
of it and why, and the prompt token by token. */
export type ContextFields = { "policy"?: ("refuse" | "window" | "middle" | "summarise" | "retrieve" | null); "max_input_tokens"?: (number | null); "reserve_output_tokens"?: (number | null); "documents_budget"?: (number | null); "recall_budget"?: (number | null); "summary_budget"?: (number | null); "knowledge"?: (boolean | null); "low_water"?: (number | null); "pin"?: (string)[]; "inspect"?: (boolean | null) };

export type ContextManagement = { "edits"?: ((ContextEdit)[] | null) };

/** A new conversation: what was said so far, and what it is to be known by. */
export type ConversationBody = { "items"?: (((MessageItem | FunctionCallItem | FunctionCallOutputItem | ReasoningItem | ReferenceItem | OtherItem))[] | null); "metadata"?: (Record<string, string> | null) };

/** One item of a conversation. */
export type ConversationItem = (ConversationMessage | FunctionCall | FunctionCallOutput | Reasoning);

/** Newest first, unless `order` is `asc`; of added items in their order. */
export type ConversationItems = { "object": "list"; "data": ((ConversationMessage | FunctionCall | FunctionCallOutput | Reasoning))[]; "first_id": (string | null); "last_id": (string | null); "has_more": boolean };

/** Items to add to a conversation. A result names a call since the user's last message. */
export type ConversationItemsBody = { "items": ((MessageItem | FunctionCallItem | FunctionCallOutputItem | ReasoningItem | ReferenceItem | OtherItem))[] };

/** `incomplete` is an answer that a limit or the guard has cut. */
export type ConversationMessage = { "id": string; "type": "message"; "role": string; "status": "in_progress" | "completed" | "incomplete"; "content": ((InputText | OutputText))[] };

export type ConversationOf = { "id": string };

/** `conv_X` is the session `s_X`. */
export type ConversationShown = { "id": string; "object": "conversation"; "created_at": number; "metadata": Record<string, unknown> };

/** What decides the tokens of a prompt; the other fields of a request do not. */
export type CountTokensBody = { "model"?: (string | null); "messages": (TurnMessage)[]; "system"?: (string | (TextOnlyBlock)[] | null); "tools"?: ((AnthropicTool)[] | null); "tool_choice"?: (AnthropicToolChoice | null); "thinking"?: (Thinking | null); "output_config"?: (OutputConfig | null); "output_format"?: (AnthropicJsonFormat | null); "cache_control"?: (CacheControl | null); "context_management"?: (ContextManagement | null); "documents"?: ((DocumentText)[] | null); "chat_template_kwargs"?: (Record<string, unknown> | null) };

/** How many messages there are of each kind; the lists of ids may name fewer. */
export type Counts = { "kept": number; "dropped": number; "summarised": number };

/** The first of the newest messages that are sent, and the number of tokens for which the next turns keep this cut.
`at` of a stored receipt is null once that message is deleted. */
export type Cut = { "at": (string | null); "stable_for_tokens": number };

export type Decisions = { "token_budget": number; "preemptions": number; "backlog_seconds": number; "deadlines_out_of_reach": number; "draft_tokens": number; "accepted_draft_tokens": number };

export type Deleted = { "deleted": string };

export type DeletedCompletion = { "id": string; "object": "chat.completion.deleted"; "deleted": true };

export type DeletedConversation = { "id": string; "object": "conversation.deleted"; "deleted": true };

export type DeletedResponse = { "id": string; "object": "response"; "deleted": true };

/** `replicas` is the number of engine processes, which share the version's weights and one queue. `draft` is a small
version with the same tokens that makes drafts for it. `engine` is the engine that serves it, `dosirak` or `vllm`,
with options of its own. `max_model_len` is the most positions of a sequence, at most the version's own. */
export type DeploymentBody = { "model": string; "replicas"?: (number | null); "draft"?: (string | null); "engine"?: (string | null); "engine_options"?: (Record<string, (number | string)> | null); "max_model_len"?: (number | null) };

export type DeploymentList = { "data": (DeploymentShown)[] };

/** `phase` says what a loading deployment does, `error` why a deployment failed, `draft` which version makes drafts
for it, `engine` what serves it. `shared_bytes` of the weights are in memory once for all replicas. `slow_path` is
null where the engine's fastest way serves. `max_model_len` are the positions of a sequence. */
export type DeploymentShown = { "model": string; "digest": string; "state": "loading" | "ready" | "restarting" | "draining" | "failed"; "phase": string; "error": (string | null); "precision": string; "draft": (string | null); "max_model_len": number; "engine": EngineShown; "memory_bytes": (number | null); "shared_bytes": (number | null); "slow_path": (SlowPathShown | null); "load_seconds": number; "in_flight": number; "replicas": (ReplicaShown)[] };

/** TGI's details. `prefill` has the prompt's tokens where the request sets `decoder_input_details`. */
export type Details = { "finish_reason": "length" | "eos_token" | "stop_sequence"; "generated_tokens": number; "seed": number; "tokens": (TokenShown)[]; "prefill": (PromptToken)[]; "top_tokens"?: (((TokenShown)[])[] | null); "best_of_sequences"?: ((OtherSequence)[] | null) };

/** Token ids to turn into text. Control tokens are shown, so that the text gives the same ids again. */
export type DetokenizeBody = { "tokens": (number)[]; "model"?: (string | null); "skip_special_tokens"?: boolean };

export type Detokenized = { "prompt": string };

/** A text that the answer may rest on; rank is its position. */
export type DocumentText = { "text": string; "title"?: (string | null); "id"?: (string | null) };

/** `truncate_prompt_tokens` keeps the last so many tokens of each input; -1 keeps as many from its beginning as the
window has. */
export type EmbeddingBody = { "input": (string | (string)[] | (number)[] | ((number)[])[]); "model"?: (string | null); "encoding_format"?: ("float" | "base64" | null); "dimensions"?: (number | null); "user"?: (string | null); "pooling"?: ("mean" | "last" | "cls" | null); "normalize"?: (boolean | null); "truncate_prompt_tokens"?: (number | null); "cache_salt"?: (string | null); "priority"?: (number | null); "deadline_ms"?: (number | null); "request_id"?: (string | null) };

export type EmbeddingUsage = { "prompt_tokens": number; "total_tokens": number };

/** `embedding` holds fp32 numbers, as numbers or as base64 of their little-endian bytes. */
export type EmbeddingVector = { "object": "embedding"; "index": number; "embedding": ((number)[] | string) };

/** `data` has the order of the inputs. `digest`, `pooling` and `normalized` are our own. */
export type Embeddings = { "object": "list"; "data": (EmbeddingVector)[]; "model": string; "usage": EmbeddingUsage; "digest": string; "pooling": "mean" | "last" | "cls"; "normalized": boolean };

/** `version` is null until an engine that is not ours has told its own. */
export type EngineShown = { "name": "dosirak" | "vllm"; "version": (string | null); "guarantees": Guarantees };

export type Error = { "error": string; "code": string; "error_type": string; "request_id": string; [name: string]: unknown };

/** `param` and `code` are ours, as in OpenAI's errors. */
export type ErrorBody = { "type": string; "message": string; "param": (string | null); "code": string };

export type EvaluateBody = { "effort"?: "quick" | "full" };

/** A request to try. `curl` is the same as a command; a server with a key names the variable that holds it. */
export type Example = { "path": string; "body": Record<string, unknown>; "curl": string };

/** When something expires: seconds after it was made, an hour to 30 days. */
export type ExpiresAfter = { "anchor": "created_at"; "seconds": number };

/** A failure in a stream; `response.failed` comes after it. */
export type Failure = { "sequence_number": number; "type": "error"; "code": (string | null); "message": string; "param": (string | null) };

/** `id` is the id of an answer in a session of the caller. `rating` 1 is good, -1 is bad. `preferred_over` is the id
of another answer, the worse of the two. */
export type FeedbackBody = { "id": string; "rating": 1 | -1; "preferred_over"?: (string | null); "comment"?: (string | null) };

export type FileDeleted = { "id": string; "object": "file"; "deleted": boolean };

/** Newest first, unless `order` is `asc`. */
export type FilePage = { "object": "list"; "data": (FileShown)[]; "first_id": (string | null); "last_id": (string | null); "has_more": boolean };

/** Seconds since 1970; `expires_at` is null for a file that stays. */
export type FileShown = { "id": string; "object": "file"; "bytes": number; "created_at": number; "expires_at": (number | null); "filename": string; "purpose": "batch" | "batch_output"; "status": "processed"; "status_details": (string | null) };

/** `at` is the last message that the copy has. */
export type ForkBody = { "at": string };

/** `call_id` names the call in its result; `arguments` is a JSON object as text. */
export type FunctionCall = { "id": string; "type": "function_call"; "call_id": string; "name": string; "arguments": string; "status": "in_progress" | "completed" | "incomplete" };

/** `arguments` is a JSON object as text; empty text is an object without members. */
export type FunctionCallFields = { "name": string; "arguments": (string | Record<string, unknown> | null); "parsed_arguments"?: unknown };

/** A call that the model made; `call_id` names it in its result. */
export type FunctionCallItem = { "type": "function_call"; "call_id": string; "name": string; "arguments": (string | Record<string, unknown> | null); "id"?: (string | null); "status"?: ("in_progress" | "completed" | "incomplete" | null) };

export type FunctionCallOutput = { "id": string; "type": "function_call_output"; "call_id": string; "output": string; "status": "in_progress" | "completed" | "incomplete" };

/** What a function gave back. */
export type FunctionCallOutputItem = { "type": "function_call_output"; "call_id": string; "output": (string | (TextPart)[]); "id"?: (string | null); "status"?: ("in_progress" | "completed" | "incomplete" | null) };

/** The function that must be called. */
export type FunctionChoice = { "type": "function"; "name": string };

export type FunctionDelta = { "name"?: (string | null); "arguments": string };

/** `parameters` is the JSON schema of the arguments; without it the function has none. A forced call keeps the
schema whether `strict` is set or not; with `strict` every call keeps it. */
export type FunctionFields = { "name": string; "description"?: (string | null); "parameters"?: (Record<string, unknown> | null); "strict"?: (boolean | null) };

/** `parameters` is the JSON schema of the arguments; without it the function has none. A forced call keeps the
schema whether `strict` is set or not. */
export type FunctionTool = { "type": "function"; "name": string; "description"?: (string | null); "parameters"?: (Record<string, unknown> | null); "strict"?: (boolean | null) };

/** How the gate of `alias` judges a version that would replace the present one. */
export type GateShown = { "alias": string; "checks": (CheckShown)[] };

/** `reasoning` is what the model wrote for itself before its answer. With `n` above 1 `generated_texts` has all
answers, the first of them first. */
export type GenerateAnswer = { "generated_text": string; "reasoning"?: (string | null); "id": string; "model": string; "version": string; "digest": string; "finish_reason": "stop" | "length" | "deadline" | "error" | "content_filter"; "usage": Usage; "timings": Timings; "context": Receipt; "session_id"?: (string | null); "tool_calls"?: ((CalledTool)[] | null); "guard"?: ((GuardFinding)[] | null); "generated_texts"?: ((string)[] | null); "details"?: (Details | null) };

/** Exactly one of `inputs`, `messages`, `input_ids`, `text_input`. */
export type GenerateBody = { "parameters"?: Parameters; "stream"?: boolean; "context"?: (ContextFields | null); "priority"?: number; "deadline_ms"?: (number | null); "session_id"?: (string | null); "inputs"?: (string | null); "messages"?: ((ChatMessage)[] | null); "input_ids"?: ((number)[] | null); "text_input"?: (string | null); "model"?: (string | null); "documents"?: ((DocumentText)[] | null); "request_id"?: (string | null); "user"?: (string | null); "continue_final_message"?: boolean; "choices"?: ((string)[] | null) };

/** The data of one event; in Triton's shape where the body has `text_input`. */
export type GenerateEvent = (TokenEvent | TritonAnswer);

/** TGI's `grammar`. `value` is a schema for `json` and `json_schema`, a pattern for `regex`, a list of texts for
`choice`, a grammar for `lark`; `json_object` has none. */
export type GrammarFields = { "type": "json" | "json_schema" | "json_object" | "regex" | "choice" | "lark"; "value"?: ((Record<string, unknown> | string | boolean) | (string)[] | null) };

/** What holds of an engine's answers: whether they are the same in any batch, which ones go on exactly after the
death of an engine process, and in which batches a seed gives the same tokens again. */
export type Guarantees = { "batch_invariant": boolean; "replay": "exact" | "greedy"; "seed": "any_batch" | "alone" };

/** How often a rule of the guard found something in the answer. */
export type GuardFinding = { "rule": string; "action": "flag" | "mask" | "stop"; "count": number };

export type HTTPValidationError = { "detail"?: (ValidationError)[] };

/** `source` is a directory, archive or GGUF file on the server's machine, a hub id, or a BentoML store tag. For a
PEFT adapter `adapter_of` names its base version. The precision is `file` unless given for a GGUF file whose blocks
are computed as they are, and `bf16` for other sources. */
export type ImportBody = { "source": string; "precision"?: ("fp32" | "bf16" | "int8" | "int8-weight" | "llm-int8" | "int4" | "file" | null); "version"?: (string | number | null); "revision"?: (string | null); "adapter_of"?: (string | null); "evaluate"?: "none" | "quick" | "full" };

export type Incomplete = { "reason": "max_output_tokens" | "content_filter" };

/** `ready` lists only what would answer at once. */
export type IndexBody = { "ready"?: (boolean | null) };

/** One version. `reason` says why it is not ready. */
export type IndexEntry = { "name": string; "version": string; "state": "READY" | "LOADING" | "UNLOADING" | "UNAVAILABLE"; "reason": string };

export type InferAnswer = { "model_name": string; "model_version": string; "id"?: (string | null); "outputs": (OutputTensorShown)[] };

/** An inference request with the signature of `/generate`. With the header Inference-Header-Content-Length the
elements of tensors may stand behind the JSON. */
export type InferBody = { "id"?: (string | null); "parameters"?: (InferParameters | null); "inputs": (InputTensor)[]; "outputs"?: ((OutputTensor)[] | null) };

/** `binary_data_output`: the answer's text as bytes behind the JSON. All others are parameters of `/generate`. */
export type InferParameters = { "binary_data_output"?: (boolean | null); [name: string]: unknown };

/** TGI's fields, then ours. `engine` is null while the default model is not loaded. `host` and `measured` are as in
`dosirak doctor --json`; `measured` is null before it ran. */
export type Info = { "model_id": string; "model_sha": string; "model_dtype": string; "model_device_type": (string | null); "model_pipeline_tag": string; "max_concurrent_requests": number; "max_best_of": number; "max_stop_sequences": number; "max_input_tokens": number; "max_total_tokens": number; "max_client_batch_size": number; "router": string; "version": string; "model": string; "digest": string; "precision": string; "architecture": string; "engine": (Record<string, unknown> | null); "settings": Record<string, unknown>; "host": Record<string, unknown>; "measured": (Record<string, unknown> | null) };

export type InputDetails = { "cached_tokens": number; "cache_write_tokens": number };

export type InputJsonDelta = { "type": "input_json_delta"; "partial_json": string };

/** `text_input`, of one element, or a parameter of `/generate` by its name. */
export type InputTensor = { "name": string; "shape": (number)[]; "datatype": "BOOL" | "UINT8" | "UINT16" | "UINT32" | "UINT64" | "INT8" | "INT16" | "INT32" | "INT64" | "FP16" | "FP32" | "FP64" | "BYTES"; "parameters"?: (InputTensorParameters | null); "data"?: ((unknown)[] | null) };

export type InputTensorParameters = { "binary_data_size"?: (number | null) };

export type InputText = { "type": "input_text"; "text": string };

export type InputTokens = { "object": "response.input_tokens"; "input_tokens": number };

/** The body that has the tokens of a response's input counted. */
export type InputTokensBody = { "model"?: (string | null); "input"?: (string | ((MessageItem | FunctionCallItem | FunctionCallOutputItem | ReasoningItem | ReferenceItem))[] | null); "conversation"?: (string | { "id": string } | null); "previous_response_id"?: (string | null); "instructions"?: (string | null); "reasoning"?: (ReasoningFields | null); "text"?: (TextFields | null); "tools"?: ((FunctionTool)[] | null); "tool_choice"?: ("none" | "auto" | "required" | FunctionChoice | null); "parallel_tool_calls"?: (boolean | null); "truncation"?: ("auto" | "disabled" | null); "context"?: (ContextFields | null); "documents"?: ((DocumentText)[] | null); "chat_template_kwargs"?: (Record<string, unknown> | null) };

/** One message of the chat, or a document, a summary, passages of the knowledge base, a raw prompt: `role` is then
that word. `tokens` are those of its texts, without the template's. */
export type InspectedMessage = { "id": (string | null); "role": string; "tokens": number; "state": "kept" | "dropped" | "summarised" | "recalled"; "why": string };

export type InstanceList = { "data": (InstanceShown)[] };

/** A server. `this` marks the one that answers. `ready` and `loaded` are what it told with its last heartbeat;
without a heartbeat for six seconds it is not `living`. */
export type InstanceShown = { "id": string; "software": string; "this": boolean; "started_at": string; "heartbeat_seconds": number; "living": boolean; "ready": boolean; "loaded": (LoadedVersion)[] };

/** The 95 % interval of a figure, and the number of scored tokens, answers, questions or rounds behind it. */
export type IntervalShown = { "low": number; "high": number; "items": number };

export type JobList = { "data": (JobShown)[] };

/** `progress` is 0 to 1, and `doing` names the present work. An import's `result` is `{"model", "version",
"digest"}`. */
export type JobShown = { "id": string; "kind": "import" | "quantize" | "evaluate"; "arguments": Record<string, unknown>; "state": "queued" | "running" | "succeeded" | "failed" | "cancelled"; "created_at": string; "progress": number; "doing": string; "result": (Record<string, unknown> | null); "error": (string | null) };

/** OpenAI's `text.format`. The answer keeps the schema whether `strict` is set or not. */
export type JsonFormat = { "type": "text" | "json_object" | "json_schema"; "name"?: (string | null); "description"?: (string | null); "schema"?: (Record<string, unknown> | boolean | null); "strict"?: (boolean | null) };

/** Ids of documents; `cut` are the ids of `kept` that were not sent whole. */
export type KeptDocuments = { "kept": (string)[]; "dropped": (string)[]; "cut"?: ((string)[] | null) };

/** A key. `scopes` say what it may do, `admin` everything. Only `models` answer it, names or `name:version`; absent,
all do. */
export type KeyBody = { "models"?: ((string)[] | null); "expires_at"?: (string | null); "limits"?: (LimitsBody | null); "name": string; "scopes": ("generate" | "sessions" | "models:read" | "models:write" | "metrics" | "admin")[] };

/** The fields to change: an absent one stays as it is, and so does an absent one of `limits`; null takes `models`,
`expires_at`, `limits` or one of them away. */
export type KeyChangeBody = { "models"?: ((string)[] | null); "expires_at"?: (string | null); "limits"?: (LimitsBody | null); "name"?: string; "scopes"?: ("generate" | "sessions" | "models:read" | "models:write" | "metrics" | "admin")[] };

/** Oldest first. */
export type KeyList = { "data": (KeyShown)[] };

/** A key without what lets anybody in. `id` is the owner of all that its bearers store. `key` is there in the answer
that made it, and never again. */
export type KeyShown = { "id": string; "name": string; "scopes": (string)[]; "models": ((string)[] | null); "limits": (LimitsShown | null); "expires_at": (string | null); "created_at": string; "key"?: (string | null) };

/** A document for all chats of the caller, or with `session_id` for one session. */
export type KnowledgeBody = { "text": string; "title"?: (string | null); "session_id"?: (string | null) };

/** A document without its text. `passages` is their number. */
export type KnowledgeItem = { "id": string; "title": (string | null); "session_id": (string | null); "passages": number; "created_at": string };

/** Newest first, without texts. */
export type KnowledgePage = { "data": (KnowledgeItem)[]; "next_cursor": (string | null) };

export type KnowledgeShown = { "id": string; "title": (string | null); "session_id": (string | null); "passages": number; "created_at": string; "text": string };

/** Modules that are stored in the same way. */
export type LayerShown = { "pattern": string; "dtype": string };

/** What a key may use of all instances, and `concurrent` requests at a time of each; null is no limit. Tokens are
those of prompts and answers, and count when an answer has ended. A day begins at 00:00 UTC. Requests are those of
the scope `generate`. */
export type LimitsBody = { "requests_per_minute"?: (number | null); "tokens_per_minute"?: (number | null); "requests_per_day"?: (number | null); "tokens_per_day"?: (number | null); "concurrent"?: (number | null) };

export type LimitsShown = { "requests_per_minute": (number | null); "tokens_per_minute": (number | null); "requests_per_day": (number | null); "tokens_per_day": (number | null); "concurrent": (number | null) };

/** The origin of a version: what was imported, or from which version it was made and how. */
export type LineageShown = { "source": string; "parent": (string | null); "parent_digest": (string | null); "recipe": string; "tools": (string)[]; "author": string };

export type Links = { "ui": string; "docs": string; "openapi": string; "info": string; "metrics": string };

/** An item that a request brought, with the fields of its type. */
export type ListedItem = { "id": string; "type": "message" | "function_call" | "function_call_output" | "reasoning"; "status"?: ("in_progress" | "completed" | "incomplete" | null); "role"?: ("system" | "developer" | "user" | "assistant" | null); "content"?: ((Record<string, unknown>)[] | null); "call_id"?: (string | null); "name"?: (string | null); "arguments"?: (string | null); "output"?: (string | null); "summary"?: ((Record<string, unknown>)[] | null) };

/** Newest first, unless `order` is `asc`. */
export type ListedItems = { "object": "list"; "data": (ListedItem)[]; "first_id": (string | null); "last_id": (string | null); "has_more": boolean };

export type Live = { "live": true };

/** Blocks of the KV cache in memory; `cached` of them hold a known prefix. */
export type LiveBlocks = { "total": number; "free": number; "cached": number };

/** The figures of one moment: `at` in Unix seconds. Rates are of the `interval_seconds` before it. */
export type LiveEvent = { "at": number; "interval_seconds": number; "versions": (LiveVersion)[] };

/** Exact nearest ranks over the last 60 s, of the newest 8192 observations at most, since somebody listens. `count`
is their number; the percentiles are null where it is 0. */
export type LivePercentiles = { "p50": (number | null); "p95": (number | null); "count": number };

/** Of the last 60 s since somebody listens: prompt tokens that were looked up in the prefix cache, and those of them
that were found. */
export type LivePrefixHits = { "cached_tokens": number; "prompt_tokens": number };

/** One step. The prediction was made before the step, by the cost line of that moment, and leaves out copies to and
from disk. */
export type LiveStep = { "tokens": number; "sequences": number; "predicted_seconds": number; "seconds": number };

/** What one version does. Queues, blocks, prompt tokens, prefix hits, cost and steps are of its engine, which a base
and its adapters share. `steps` are those since the event before, oldest first, the newest 32 at most. */
export type LiveVersion = { "model": string; "state": "loading" | "ready" | "restarting" | "draining" | "failed"; "running": number; "waiting": number; "kv_blocks": LiveBlocks; "tokens_per_second": number; "prompt_tokens_per_second": number; "ttft_seconds": LivePercentiles; "itl_seconds": LivePercentiles; "prefix_hits": LivePrefixHits; "cost": StepCost; "steps": (LiveStep)[] };

export type LoadBody = { "parameters"?: (LoadParameters | null) };

/** Triton loads with another configuration by these; a version here is immutable. */
export type LoadParameters = Record<string, unknown>;

export type Loaded = { "name": string; "version": string; "load": true };

export type LoadedVersion = { "model": string; "digest": string; "state": "loading" | "ready" | "restarting" | "draining" | "failed" };

export type MessageBody = { "content"?: (string | null); "pinned"?: (boolean | null) };

export type MessageDelta = { "role"?: ("assistant" | null); "content"?: (string | null); "reasoning_content"?: (string | null); "tool_calls"?: ((CallDelta)[] | null) };

export type MessageItem = { "type"?: "message"; "role": "user" | "assistant" | "system" | "developer"; "content": (string | (TextPart)[]); "id"?: (string | null); "status"?: ("in_progress" | "completed" | "incomplete" | null) };

/** Oldest first. */
export type MessagePage = { "data": (MessageShown)[]; "next_cursor": (string | null) };

/** The fields from `context` on are an assistant's only: they say how the answer was made. `answer_id` is the
answer's `id`; null where it is not known, or where the text was edited since. `tool_calls`, `reasoning` and
`tool_call_id` are there where they are set. */
export type MessageShown = { "id": string; "role": string; "content": string; "name": (string | null); "pinned": boolean; "created_at": string; "tool_calls"?: ((CalledTool)[] | null); "tool_call_id"?: (string | null); "reasoning"?: (string | null); "context"?: (Receipt | null); "model"?: (string | null); "version"?: (string | null); "digest"?: (string | null); "usage"?: (Usage | null); "finish_reason"?: ("stop" | "length" | "deadline" | "error" | "content_filter" | null); "answer_id"?: (string | null) };

export type MessageStart = { "type": "message_start"; "message": AnthropicMessage };

export type MessageStop = { "type": "message_stop" };

/** `max_tokens` is the most that the answer may have; a smaller window ends it earlier. 0 computes the prompt alone,
so that its blocks are kept. */
export type MessagesBody = { "model"?: (string | null); "messages": (TurnMessage)[]; "system"?: (string | (TextOnlyBlock)[] | null); "tools"?: ((AnthropicTool)[] | null); "tool_choice"?: (AnthropicToolChoice | null); "thinking"?: (Thinking | null); "output_config"?: (OutputConfig | null); "output_format"?: (AnthropicJsonFormat | null); "cache_control"?: (CacheControl | null); "context_management"?: (ContextManagement | null); "documents"?: ((DocumentText)[] | null); "chat_template_kwargs"?: (Record<string, unknown> | null); "max_tokens": number; "stream"?: (boolean | null); "stop_sequences"?: ((string)[] | null); "temperature"?: (number | null); "top_p"?: (number | null); "top_k"?: (number | null); "metadata"?: (AnthropicMetadata | null); "service_tier"?: ("auto" | "standard_only" | null); "seed"?: (number | null); "session_id"?: (string | null); "context"?: (ContextFields | null); "priority"?: (number | null); "deadline_ms"?: (number | null); "request_id"?: (string | null) };

/** Metadata in place of what a stored completion or a conversation has; null removes it. */
export type MetadataBody = { "metadata": (Record<string, string> | null) };

/** `root` is the version that `id` means now; `parent` the version that it was made from, as of an adapter its base;
null for an original. */
export type Model = { "id": string; "object": "model"; "created": number; "owned_by": string; "root": string; "parent": (string | null); "digest": string; "precision": string; "max_model_len": number };

/** `versions`: the one that the path names, else every version of the name. */
export type ModelMetadata = { "name": string; "versions": (string)[]; "platform": "dosirak_safetensors"; "inputs": (TensorMetadata)[]; "outputs": (TensorMetadata)[] };

/** Models by name, 100 at a time. */
export type ModelPage = { "data": (ModelSummary)[]; "next_cursor": (string | null) };

export type ModelReady = { "name": string; "ready": true };

export type ModelSummary = { "name": string; "versions": number; "newest": string; "aliases": Record<string, string>; "bytes": number };

/** A page of the versions, newest first, and all aliases. `next_cursor` is null on the last page. */
export type ModelVersions = { "name": string; "aliases": Record<string, string>; "versions": (VersionShown)[]; "next_cursor": (string | null) };

export type Models = { "object": "list"; "data": (Model)[] };

export type NamedFunction = { "name": string };

/** OpenAI's `json_schema`. The answer keeps the schema whether `strict` is set or not. */
export type NamedSchema = { "name": string; "description"?: (string | null); "schema"?: (Record<string, unknown> | boolean); "strict"?: (boolean | null) };

/** The function that must be called. */
export type NamedTool = { "type": "function"; "function": NamedFunction };

export type Observed = { "base": ObservedVersion; "candidate": ObservedVersion; "shadow": (ObservedShadow | null) };

export type ObservedShadow = { "compared": number; "same": number; "agreement": number; "length_ratio": number; "latency_ratio": number };

/** `timed` counts the requests whose TTFT is known. */
export type ObservedVersion = { "requests": number; "timed": number; "error_rate": number; "ttft_p95_ms": (number | null) };

export type OfItem = { "sequence_number": number; "type": "response.output_item.added" | "response.output_item.done"; "output_index": number; "item": (OutputMessage | FunctionCall | Reasoning) };

export type OfPart = { "sequence_number": number; "item_id": string; "output_index": number; "type": "response.content_part.added" | "response.content_part.done"; "content_index": number; "part": (OutputText | ReasoningText) };

export type OfResponse = { "sequence_number": number; "type": "response.created" | "response.in_progress" | "response.completed" | "response.incomplete" | "response.failed"; "response": ResponseShown };

/** A call of an earlier answer, as Ollama's clients send it back. */
export type OllamaCall = { "id"?: (string | null); "type"?: ("function" | null); "function": OllamaFunction };

export type OllamaCalled = { "id": string; "function": OllamaCalledFunction };

export type OllamaCalledFunction = { "name": string; "arguments": Record<string, unknown> };

export type OllamaChatAnswer = { "model": string; "created_at": string; "done": boolean; "logprobs"?: ((OllamaLogprob)[] | null); "done_reason"?: ("stop" | "length" | "load" | "unload" | null); "finish_detail"?: ("deadline" | "error" | null); "total_duration"?: (number | null); "load_duration"?: (number | null); "prompt_eval_count"?: (number | null); "prompt_eval_duration"?: (number | null); "eval_count"?: (number | null); "eval_duration"?: (number | null); "digest"?: (string | null); "context_receipt"?: (Receipt | null); "guard"?: ((GuardFinding)[] | null); "message": OllamaSaid };

/** Without messages nothing is generated: the model is loaded, or with `keep_alive` 0 unloaded. */
export type OllamaChatBody = { "model": string; "stream"?: (boolean | null); "think"?: (boolean | "low" | "medium" | "high" | null); "format"?: (Record<string, unknown> | string | null); "options"?: (OllamaOptions | null); "keep_alive"?: ((number | string) | null); "truncate"?: (boolean | null); "logprobs"?: (boolean | null); "top_logprobs"?: (number | null); "tools"?: ((ToolFields)[] | null); "messages"?: ((OllamaMessage)[] | null) };

/** `quantization_level` is the version's precision; `parent_model` the version that it was made from, if any. */
export type OllamaDetails = { "parent_model": string; "format": "safetensors"; "family": string; "families": (string)[]; "parameter_size": string; "quantization_level": string };

/** The vectors have the order of the inputs. Durations are in nanoseconds; `digest` is our own. Without an input
there are neither. */
export type OllamaEmbedAnswer = { "model": string; "embeddings": ((number)[])[]; "total_duration"?: (number | null); "load_duration"?: (number | null); "prompt_eval_count"?: (number | null); "digest"?: (string | null) };

/** Without an input nothing is computed: the model is loaded, or with `keep_alive` 0 unloaded. */
export type OllamaEmbedBody = { "model": string; "options"?: (OllamaEmbedOptions | null); "keep_alive"?: ((number | string) | null); "input"?: (string | (string)[] | null); "truncate"?: (boolean | null); "dimensions"?: (number | null) };

export type OllamaEmbedOptions = { "num_ctx"?: (number | null) };

export type OllamaEmbeddingsAnswer = { "embedding": (number)[] };

/** Without a prompt nothing is computed: the model is loaded, or with `keep_alive` 0 unloaded. */
export type OllamaEmbeddingsBody = { "model": string; "options"?: (OllamaEmbedOptions | null); "keep_alive"?: ((number | string) | null); "prompt"?: (string | null) };

export type OllamaError = { "error": string };

export type OllamaFunction = { "name": string; "arguments"?: (Record<string, unknown> | null); "index"?: (number | null) };

export type OllamaGenerateAnswer = { "model": string; "created_at": string; "done": boolean; "logprobs"?: ((OllamaLogprob)[] | null); "done_reason"?: ("stop" | "length" | "load" | "unload" | null); "finish_detail"?: ("deadline" | "error" | null); "total_duration"?: (number | null); "load_duration"?: (number | null); "prompt_eval_count"?: (number | null); "prompt_eval_duration"?: (number | null); "eval_count"?: (number | null); "eval_duration"?: (number | null); "digest"?: (string | null); "context_receipt"?: (Receipt | null); "guard"?: ((GuardFinding)[] | null); "response": string; "thinking"?: (string | null) };

/** Without a prompt nothing is generated: the model is loaded, or with `keep_alive` 0 unloaded. */
export type OllamaGenerateBody = { "model": string; "stream"?: (boolean | null); "think"?: (boolean | "low" | "medium" | "high" | null); "format"?: (Record<string, unknown> | string | null); "options"?: (OllamaOptions | null); "keep_alive"?: ((number | string) | null); "truncate"?: (boolean | null); "logprobs"?: (boolean | null); "top_logprobs"?: (number | null); "prompt"?: (string | null); "system"?: (string | null); "raw"?: (boolean | null) };

export type OllamaLogprob = { "token": string; "logprob": number; "bytes": ((number)[] | null); "top_logprobs": (OllamaToken)[] };

/** A tool's message is the result of a call: `tool_call_id` or `tool_name` names it; without either it is the next
one. */
export type OllamaMessage = { "role": "system" | "user" | "assistant" | "tool"; "content"?: (string | null); "thinking"?: (string | null); "tool_calls"?: ((OllamaCall)[] | null); "tool_name"?: (string | null); "tool_call_id"?: (string | null) };

/** A version, or as `name:latest` what the bare name means now. `size` is in bytes, `digest` a sha256. */
export type OllamaModel = { "name": string; "model": string; "modified_at": string; "size": number; "digest": string; "details": OllamaDetails; "capabilities": (string)[] };

export type OllamaModels = { "models": (OllamaModel)[] };

/** Ollama's `options`, with its names and defaults. `num_predict` -1: no limit. A negative `seed`: one that the
server draws. */
export type OllamaOptions = { "num_ctx"?: (number | null); "num_predict"?: (number | null); "temperature"?: (number | null); "top_k"?: (number | null); "top_p"?: (number | null); "min_p"?: (number | null); "typical_p"?: (number | null); "repeat_penalty"?: (number | null); "repeat_last_n"?: (number | null); "presence_penalty"?: (number | null); "frequency_penalty"?: (number | null); "seed"?: (number | null); "stop"?: (string | (string)[] | null) };

/** A version in memory. `size` is what its engine holds, `size_vram` what of it a GPU holds. `expires_at` is when it
is unloaded if no request comes; a hundred years ahead where it stays. */
export type OllamaRunningModel = { "name": string; "model": string; "size": number; "digest": string; "details": OllamaDetails; "expires_at": string; "size_vram": number; "context_length": number };

export type OllamaRunningModels = { "models": (OllamaRunningModel)[] };

export type OllamaSaid = { "role": "assistant"; "content": string; "thinking"?: (string | null); "tool_calls"?: ((OllamaCalled)[] | null) };

export type OllamaShowBody = { "model"?: (string | null); "name"?: (string | null) };

/** `model_info` has `general.architecture`, and numbers under the architecture's name. */
export type OllamaShown = { "license": string; "modified_at": string; "details": OllamaDetails; "model_info": Record<string, unknown>; "capabilities": (string)[] };

/** `bytes` is null for a token that is a part of a character. */
export type OllamaToken = { "token": string; "logprob": number; "bytes": ((number)[] | null) };

/** The version of this software, not of Ollama. */
export type OllamaVersion = { "version": string };

export type OpenAIError = { "error": { "message": string | null; "type": string | null; "param": string | null; "code": string | null } };

/** Sums over all prompts. */
export type OpenAIUsage = { "prompt_tokens": number; "completion_tokens": number; "total_tokens": number; "cached_tokens": number; "prompt_tokens_before_truncation": number; "reasoning_tokens"?: (number | null); "prompt_tokens_details": CachedTokens; "completion_tokens_details": ReasoningTokens };

/** Own seconds and calls a step; 0 where a profile does not have the operator. The difference is b less a. */
export type OperatorDifference = { "name": string; "a_seconds_per_step": number; "b_seconds_per_step": number; "difference_seconds_per_step": number; "a_calls_per_step": number; "b_calls_per_step": number };

/** `self_seconds` and `self_bytes`, over all steps, leave out the operators that it calls. `self_bytes` is what it
allocated, null but for the kind `memory`. */
export type OperatorShown = { "name": string; "calls": number; "self_seconds": number; "self_bytes": (number | null) };

/** Any other item, which is refused. */
export type OtherItem = Record<string, unknown>;

export type OtherSequence = { "finish_reason": "length" | "eos_token" | "stop_sequence"; "generated_tokens": number; "seed": number; "tokens": (TokenShown)[]; "prefill": (PromptToken)[]; "top_tokens"?: (((TokenShown)[])[] | null); "generated_text": string };

/** `effort` high is Anthropic's default: a version that knows no efforts takes it. */
export type OutputConfig = { "effort"?: ("low" | "medium" | "high" | "xhigh" | "max" | null); "format"?: (AnthropicJsonFormat | null) };

export type OutputDetails = { "reasoning_tokens": number };

export type OutputMessage = { "id": string; "type": "message"; "role": "assistant"; "status": "in_progress" | "completed" | "incomplete"; "content": (OutputText)[] };

export type OutputTensor = { "name": "text_output"; "parameters"?: (OutputTensorParameters | null) };

export type OutputTensorParameters = { "binary_data"?: (boolean | null) };

/** `data` holds the text; in a binary answer `parameters` says how many bytes behind the JSON do. */
export type OutputTensorShown = { "name": "text_output"; "datatype": "BYTES"; "shape": (number)[]; "data"?: ((string)[] | null); "parameters"?: (BinarySize | null) };

/** `logprobs` is empty unless `include` asks for them. */
export type OutputText = { "type": "output_text"; "text": string; "annotations": (unknown)[]; "logprobs"?: ((ChatTokenLogprob)[] | null) };

/** The parameters of an answer. As in TGI, decoding is greedy unless `do_sample` is true or a field that shapes
sampling is given (`temperature`, or `top_p`, `typical_p` below 1, `top_k`, `min_p` above 0); `temperature` 0 is
always greedy. */
export type Parameters = { "min_p"?: (number | null); "typical_p"?: (number | null); "top_n_sigma"?: (number | null); "repetition_penalty"?: (number | null); "frequency_penalty"?: (number | null); "presence_penalty"?: (number | null); "logit_bias"?: (Record<string, number> | null); "max_new_tokens"?: (number | null); "max_tokens"?: (number | null); "min_new_tokens"?: (number | null); "temperature"?: (number | null); "top_p"?: (number | null); "top_k"?: (number | null); "stop"?: (string | (string)[] | null); "include_stop"?: (boolean | null); "seed"?: (number | null); "do_sample"?: (boolean | null); "n"?: (number | null); "best_of"?: (number | null); "details"?: (boolean | null); "decoder_input_details"?: (boolean | null); "top_n_tokens"?: (number | null); "return_full_text"?: (boolean | null); "truncate"?: (number | null); "grammar"?: (GrammarFields | null); "ignore_eos"?: (boolean | null); "adapter_id"?: (string | null) };

/** How the version's answers are read, in place of what its chat template tells. null: by the template again;
"none": not at all. A field that is not sent stays as it is. */
export type ParsersBody = { "reasoning_parser"?: (string | null); "tool_parser"?: (string | null) };

export type ParsersShown = { "model": string; "reasoning_parser": (string | null); "tool_parser": (string | null) };

export type Parts = { "template": number; "system": number; "documents": number; "summary": number; "history": number; "current": number; "tools"?: (number | null) };

/** Comes while a stream waits for its first token. */
export type Ping = { "type": "ping" };

/** `context` is null where the call would be refused; then the refusal's sentence, code and numbers stand beside
it. */
export type Preview = { "model": string; "version": string; "digest": string; "would_refuse": boolean; "context": (Receipt | null); "error"?: (string | null); "code"?: (string | null); [name: string]: unknown };

/** `steps` of the version's engine are recorded; `kind` says what of them: seconds of `operators`, their `memory`
too, or Python's `stacks` too. */
export type ProfileBody = { "steps": number; "model"?: (string | null); "kind"?: "operators" | "memory" | "stacks" };

/** Profiles, newest first. */
export type ProfilePage = { "data": (ProfileShown)[]; "next_cursor": (string | null) };

/** `steps` were asked for, `steps_done` recorded; `tokens` and `seconds` are of the recorded steps. `operators`, the
most seconds first, is null until the state is succeeded; `error` says why one has failed. */
export type ProfileShown = { "id": string; "model": string; "digest": string; "kind": "operators" | "memory" | "stacks"; "state": "queued" | "running" | "succeeded" | "failed"; "steps": number; "steps_done": number; "tokens": number; "seconds": number; "created_at": string; "ended_at": (string | null); "error": (string | null); "operators": ((OperatorShown)[] | null) };

/** `logprob` is null for the first token: nothing stands before it. */
export type PromptToken = { "id": number; "text": string; "logprob": (number | null) };

/** `group_size` is the number of weights that share a scale in `int4`, 32 unless given. */
export type QuantizeBody = { "precision"?: "int8" | "int8-weight" | "llm-int8" | "int4"; "group_size"?: (32 | 128 | null); "evaluate"?: "none" | "quick" | "full" };

export type Ready = { "ready": true };

export type ReasonBody = { "reason"?: string };

/** What the model thought before its answer. It is not sent again. */
export type Reasoning = { "id": string; "type": "reasoning"; "summary": (unknown)[]; "content"?: ((ReasoningText)[] | null); "status"?: ("in_progress" | "completed" | "incomplete" | null) };

export type ReasoningDelta = { "sequence_number": number; "item_id": string; "output_index": number; "type": "response.reasoning_text.delta"; "content_index": number; "delta": string };

export type ReasoningDone = { "sequence_number": number; "item_id": string; "output_index": number; "type": "response.reasoning_text.done"; "content_index": number; "text": string };

export type ReasoningFields = { "effort"?: ("none" | "minimal" | "low" | "medium" | "high" | "xhigh" | null) };

/** What a model thought before an answer, as the answer had it. It is not sent again. */
export type ReasoningItem = { "type": "reasoning"; "summary"?: ((unknown)[] | null); "content"?: ((unknown)[] | null); "id"?: (string | null); "status"?: ("in_progress" | "completed" | "incomplete" | null) };

export type ReasoningText = { "type": "reasoning_text"; "text": string };

export type ReasoningTokens = { "reasoning_tokens": number };

export type RecalledShown = { "cell": string; "wording": string; "right": number; "asked": number };

/** What the model received of a chat. `parts` sum to `used`; `kept`, `dropped` and `summarised` are message ids.
`messages`, `rendered` and `unlisted` are there where the request sets `context.inspect`; `unlisted` is how many
messages that were not sent `messages` leaves out. */
export type Receipt = { "policy": string; "window": number; "reserved_output": number; "used": number; "free": number; "truncated": boolean; "parts": Parts; "kept": (string)[]; "dropped": (string)[]; "summarised": (string)[]; "counts": Counts; "dropped_tokens": number; "cached_tokens": number; "cut": (Cut | null); "notes": (string)[]; "documents"?: (KeptDocuments | null); "recalled"?: ((string)[] | null); "messages"?: ((InspectedMessage)[] | null); "rendered"?: ((RenderedToken)[] | null); "unlisted"?: (number | null) };

/** An item of a stored response, by its id: of its output, or of what its request brought. */
export type ReferenceItem = { "type"?: ("item_reference" | null); "id": string };

/** The parameters for answering the last question again, and the tools: a session keeps none. */
export type RegenerateBody = { "parameters"?: Parameters; "stream"?: boolean; "context"?: (ContextFields | null); "priority"?: number; "deadline_ms"?: (number | null); "tools"?: ((ToolFields)[] | null); "tool_choice"?: (string | NamedTool | null); "parallel_tool_calls"?: (boolean | null) };

/** `text` is what the token adds to the text before it; all texts join to the prompt. `message` is an index into
`messages`, null for the template's own tokens. */
export type RenderedToken = { "id": number; "text": string; "message": (number | null) };

export type ReplicaShown = { "pid": (number | null); "device": (string | null); "state": string; "running": number; "waiting": number; "restarts": number; "silent_seconds": number; "kv_blocks": Blocks };

/** The measurements of a version; `compared` is null for a version without a parent. `intervals` are by the figure's
path, as `compared.kl`; reports of earlier releases have none, and no `amounts`. */
export type ReportShown = { "digest": string; "created_at": string; "effort": "check" | "quick" | "full"; "seconds": number; "texts": TextSetShown; "perplexity": number; "compared": (ComparisonShown | null); "speed": SpeedShown; "recall": (RecalledShown)[]; "tools": (string)[]; "intervals"?: Record<string, IntervalShown>; "amounts"?: (AmountsShown | null); "budget_seconds"?: (number | null) };

/** Every version of every model. */
export type RepositoryIndex = (IndexEntry)[];

export type ResponseBody = { "model"?: (string | null); "input"?: (string | ((MessageItem | FunctionCallItem | FunctionCallOutputItem | ReasoningItem | ReferenceItem))[] | null); "conversation"?: (string | { "id": string } | null); "previous_response_id"?: (string | null); "instructions"?: (string | null); "reasoning"?: (ReasoningFields | null); "text"?: (TextFields | null); "tools"?: ((FunctionTool)[] | null); "tool_choice"?: ("none" | "auto" | "required" | FunctionChoice | null); "parallel_tool_calls"?: (boolean | null); "truncation"?: ("auto" | "disabled" | null); "context"?: (ContextFields | null); "documents"?: ((DocumentText)[] | null); "chat_template_kwargs"?: (Record<string, unknown> | null); "stream"?: (boolean | null); "store"?: (boolean | null); "stream_options"?: (ResponseStreamOptions | null); "max_output_tokens"?: (number | null); "temperature"?: (number | null); "top_p"?: (number | null); "include"?: (("message.output_text.logprobs")[] | null); "top_logprobs"?: (number | null); "metadata"?: (Record<string, string> | null); "user"?: (string | null); "safety_identifier"?: (string | null); "prompt_cache_key"?: (string | null); "cache_salt"?: (string | null); "seed"?: (number | null); "priority"?: (number | null); "deadline_ms"?: (number | null); "request_id"?: (string | null) };

export type ResponseError = { "code": string; "message": string };

/** The data of one event, whose name is its `type`. */
export type ResponseEvent = (OfResponse | OfItem | OfPart | TextDelta | TextDone | ReasoningDelta | ReasoningDone | ArgumentsDelta | ArgumentsDone | Failure);

/** OpenAI's `response_format`, with TGI's `json` and `regex`, whose `value` is a schema or a pattern. `json_object`
may have a schema as `value`, too: huggingface_hub makes that of `json_schema`. */
export type ResponseFormat = { "type": "text" | "json_object" | "json_schema" | "json" | "regex"; "json_schema"?: (NamedSchema | null); "value"?: ((Record<string, unknown> | string | boolean) | null) };

/** A response; our own fields are there once it has ended. `finish_detail` is our own word where OpenAI has none.
`text`, `tools`, `tool_choice` and others are those of the request. */
export type ResponseShown = { "digest"?: (string | null); "context"?: (Receipt | null); "timings"?: (Timings | null); "guard"?: ((GuardFinding)[] | null); "id": string; "object": "response"; "created_at": number; "completed_at": (number | null); "status": "in_progress" | "completed" | "incomplete" | "failed"; "error": (ResponseError | null); "incomplete_details": (Incomplete | null); "finish_detail"?: ("deadline" | "error" | null); "model": string; "output": ((OutputMessage | FunctionCall | Reasoning))[]; "usage": (ResponseUsage | null); "background": boolean; "instructions": (string | null); "max_output_tokens": (number | null); "metadata": Record<string, string>; "parallel_tool_calls": boolean; "conversation": (ConversationOf | null); "previous_response_id": (string | null); "reasoning": Record<string, unknown>; "service_tier": "default"; "store": boolean; "temperature": number; "text": Record<string, unknown>; "tool_choice": (string | Record<string, unknown>); "tools": (Record<string, unknown>)[]; "top_logprobs": number; "top_p": number; "truncation": "auto" | "disabled"; "user": (string | null); "safety_identifier": (string | null); "prompt_cache_key": (string | null) };

export type ResponseStreamOptions = Record<string, unknown>;

/** `cache_write_tokens` are those of the input that the prefix cache did not have. */
export type ResponseUsage = { "input_tokens": number; "input_tokens_details": InputDetails; "output_tokens": number; "output_tokens_details": OutputDetails; "total_tokens": number };

/** `weight` is in percent; 0 with `shadow` compares answers and routes no request to the candidate. Where a rollout
of the candidate runs, `sticky`, `shadow` and each of `guards` that is not sent stays as it is. */
export type RolloutBody = { "candidate": (string | number); "weight": number; "sticky"?: boolean; "shadow"?: boolean; "guards"?: (RolloutLimitsBody | null); "override"?: boolean };

export type RolloutGuards = { "error_rate": number; "ttft_p95_ratio": number; "min_requests": number };

export type RolloutLimitsBody = { "error_rate"?: (number | null); "ttft_p95_ratio"?: (number | null); "min_requests"?: (number | null) };

export type RolloutShown = { "name": string; "alias": string; "base": string; "candidate": string; "weight": number; "sticky": boolean; "shadow": boolean; "guards": RolloutGuards; "started_at": string; "state": "running" | "promoted" | "aborted" | "rolled_back"; "ended_at": string; "reason": string };

export type Rollouts = { "rollout": (RunningRollout | null); "history": (RolloutShown)[] };

/** What runs here. `model`, `digest` and `precision` are null while there is no default model, `device` while it is
not loaded; `kernels` is empty then. */
export type Root = { "name": "Dosirak"; "version": string; "model": (string | null); "digest": (string | null); "precision": (string | null); "state": string; "device": (string | null); "kernels": (string)[]; "links": Links; "example": Example };

/** The secret of before is good for `grace_seconds` more. */
export type RotateBody = { "grace_seconds"?: number };

export type RunningRollout = { "name": string; "alias": string; "base": string; "candidate": string; "weight": number; "sticky": boolean; "shadow": boolean; "guards": RolloutGuards; "started_at": string; "state": "running" | "promoted" | "aborted" | "rolled_back"; "ended_at": string; "reason": string; "observed": Observed };

export type SameFiles = { "same": (string)[]; "differ": (string)[] };

/** `logprob` is the sum over its tokens; `probability` its share among the choices. */
export type ScoredText = { "text": string; "logprob": number; "probability": number; "tokens": (ChoiceToken)[] };

export type ServerMetadata = { "name": "Dosirak"; "version": string; "extensions": (string)[] };

/** The body that makes or changes a session: an absent field stays as it is, null removes it. */
export type SessionBody = { "title"?: (string | null); "model"?: (string | null); "system"?: (string | null); "policy"?: ("refuse" | "window" | "middle" | "summarise" | "retrieve" | null); "metadata"?: (Record<string, unknown> | null); "ttl_seconds"?: (number | null) };

/** Newest first. */
export type SessionPage = { "data": (SessionShown)[]; "next_cursor": (string | null) };

/** `revision` counts writes, from 1, and is the `ETag`. */
export type SessionShown = { "id": string; "title": (string | null); "model": (string | null); "system": (string | null); "policy": (string | null); "metadata": Record<string, unknown>; "revision": number; "message_count": number; "ttl_seconds": number; "created_at": string; "updated_at": string; "expires_at": string };

export type SignatureDelta = { "type": "signature_delta"; "signature": string };

/** A slower way than the engine's fastest serves a version, for these `reasons`. A decode step of one sequence takes
`step_ms`. Memory gives its weights in `weights_ms`, so the fastest way would be up to `slowdown` times as fast.
Both are null where the host's memory was not measured. */
export type SlowPathShown = { "reasons": (string)[]; "step_ms": number; "weights_ms": (number | null); "slowdown": (number | null) };

export type SpeedShown = { "host": string; "threads": number; "memory_bytes": number; "load_seconds": number; "prefill_tokens_per_second": number; "decode_tokens_per_second": Record<string, number> };

export type Status = { "status": "ok"; "failing"?: ((string)[] | null) };

export type Step = { "seconds": number; "tokens": number; "sequences": number };

/** seconds = constant + per token + per token of context + per query-key pair; null before it is fitted. */
export type StepCost = { "constant_seconds": (number | null); "seconds_per_token": (number | null); "seconds_per_kv_token": (number | null); "seconds_per_attention_pair": (number | null); "error_ratio": number };

export type StopDelta = { "stop_reason": "end_turn" | "max_tokens" | "stop_sequence" | "tool_use" | "refusal" | "model_context_window_exceeded"; "stop_sequence": (string | null) };

export type StoredCompletion = { "digest"?: (string | null); "context"?: (Receipt | null); "timings"?: (Timings | null); "guard"?: ((GuardFinding)[] | null); "id": string; "object": "chat.completion"; "created": number; "model": string; "system_fingerprint": string; "choices": (ChatChoice)[]; "usage": OpenAIUsage; "metadata": Record<string, string> };

/** Oldest first, unless `order` is `desc`. */
export type StoredCompletions = { "object": "list"; "data": (StoredCompletion)[]; "first_id": (string | null); "last_id": (string | null); "has_more": boolean };

/** `content` is null where the message is calls only; text parts are one text. */
export type StoredMessage = { "id": string; "role": "system" | "developer" | "user" | "assistant" | "tool"; "content": (string | null); "name"?: (string | null); "tool_calls"?: ((CalledTool)[] | null); "tool_call_id"?: (string | null) };

/** Oldest first, unless `order` is `desc`. */
export type StoredMessages = { "object": "list"; "data": (StoredMessage)[]; "first_id": (string | null); "last_id": (string | null); "has_more": boolean };

export type StreamDetails = { "finish_reason": "length" | "eos_token" | "stop_sequence"; "generated_tokens": number; "input_length": number; "seed": number };

export type StreamOptions = { "include_usage"?: (boolean | null); "continuous_usage_stats"?: (boolean | null) };

/** vLLM's `structured_outputs`: exactly one of its fields. */
export type StructuredOutputs = { "json"?: ((Record<string, unknown> | string | boolean) | null); "regex"?: (string | null); "choice"?: ((string)[] | null); "grammar"?: (string | null); "json_object"?: (boolean | null) };

export type Tallies = { "data": (TallyShown)[] };

/** `votes` is the sum of both counts. A vote with `preferred_over` counts for one answer and against the other. */
export type TallyShown = { "model": (string | null); "version": (string | null); "preferred": number; "not_preferred": number; "votes": number };

export type TensorMetadata = { "name": string; "datatype": "BYTES"; "shape": (number)[] };

/** The whole answer, or in a stream what an event adds to it. `id` is the request's, where it has one. */
export type TextAnswer = { "model_name": string; "model_version": string; "text_output": string; "id"?: (string | null) };

/** The body of Triton's generate extension. A parameter may stand in `parameters` or beside it, once. */
export type TextBody = { "min_p"?: (number | null); "typical_p"?: (number | null); "top_n_sigma"?: (number | null); "repetition_penalty"?: (number | null); "frequency_penalty"?: (number | null); "presence_penalty"?: (number | null); "logit_bias"?: (Record<string, number> | null); "max_new_tokens"?: (number | null); "max_tokens"?: (number | null); "min_new_tokens"?: (number | null); "temperature"?: (number | null); "top_p"?: (number | null); "top_k"?: (number | null); "stop"?: (string | (string)[] | null); "include_stop"?: (boolean | null); "seed"?: (number | null); "do_sample"?: (boolean | null); "n"?: (number | null); "best_of"?: (number | null); "details"?: (boolean | null); "decoder_input_details"?: (boolean | null); "top_n_tokens"?: (number | null); "return_full_text"?: (boolean | null); "truncate"?: (number | null); "grammar"?: (GrammarFields | null); "ignore_eos"?: (boolean | null); "adapter_id"?: (string | null); "id"?: (string | null); "text_input": string; "parameters"?: (Parameters | null); "stream"?: (boolean | null); "min_tokens"?: (number | null); "min_length"?: (number | null) };

/** `finish_reason` is null in all chunks of a choice but the last. */
export type TextChoice = { "digest"?: (string | null); "context"?: (Receipt | null); "timings"?: (Timings | null); "guard"?: ((GuardFinding)[] | null); "index": number; "text": string; "logprobs": (TextLogprobs | null); "finish_reason": ("stop" | "length" | "content_filter" | "tool_calls" | null); "finish_detail"?: ("deadline" | "error" | null) };

/** A whole answer, and the data of one event: the stream ends with `data: [DONE]`. */
export type TextCompletion = { "digest"?: (string | null); "context"?: (Receipt | null); "timings"?: (Timings | null); "guard"?: ((GuardFinding)[] | null); "id": string; "object": "text_completion"; "created": number; "model": string; "system_fingerprint": string; "choices": (TextChoice)[]; "usage"?: (OpenAIUsage | null) };

export type TextContent = { "type": "text"; "text": string };

export type TextDelta = { "sequence_number": number; "item_id": string; "output_index": number; "type": "response.output_text.delta"; "content_index": number; "delta": string; "logprobs": (ChatTokenLogprob)[] };

export type TextDone = { "sequence_number": number; "item_id": string; "output_index": number; "type": "response.output_text.done"; "content_index": number; "text": string; "logprobs": (ChatTokenLogprob)[] };

export type TextFields = { "format"?: (JsonFormat | null) };

/** Four lists of one length. `text_offset`: characters of the choice's text before the token. A token is what it
adds to that text: of a character's tokens the last one adds it. A control token is told by its name. */
export type TextLogprobs = { "tokens": (string)[]; "token_logprobs": ((number | null))[]; "top_logprobs": ((Record<string, number> | null))[]; "text_offset": (number)[] };

/** A block of text. */
export type TextOnlyBlock = { "type": "text"; "text": string; "cache_control"?: (CacheControl | null) };

/** A part of a message or of a result. `annotations` and `logprobs` come back with an answer's own parts and say
nothing to the model. */
export type TextPart = { "type": "input_text" | "output_text" | "text"; "text": string; "logprobs"?: ((unknown)[] | null) };

/** One text: the beginning of its sha256, the tokens that count, and the sum of their -ln p in nats. */
export type TextPartShown = { "sha256": string; "tokens": number; "loss": number };

export type TextSetShown = { "name": string; "sha256": string; "tokens": number; "parts"?: (TextPartShown)[] };

/** `start` and `stop` are positions in the text, in characters. */
export type TextToken = { "id": number; "text": string; "start": number; "stop": number };

/** Whether the model thinks before its answer; `adaptive` lets the version's template decide. `display` omitted: its
blocks come without text. No version knows its budget: `max_tokens` bounds thinking and answer together. */
export type Thinking = { "type": "enabled" | "disabled" | "adaptive"; "budget_tokens"?: (number | null); "display"?: ("summarized" | "omitted" | null) };

/** `signature` is the version's digest. */
export type ThinkingContent = { "type": "thinking"; "thinking": string; "signature": string };

export type ThinkingDelta = { "type": "thinking_delta"; "thinking": string };

export type ThinkingTokens = { "thinking_tokens": number };

/** Milliseconds; null where there was no token. `tokens_per_second`: the tokens after the first, divided by their
time. `batch_size_mean`: mean number of sequences in the steps of this answer. `replayed`: how often another engine
process took the answer over because its own had died; not there otherwise. */
export type Timings = { "queue_ms": (number | null); "prefill_ms": (number | null); "ttft_ms": (number | null); "decode_ms": (number | null); "total_ms": (number | null); "tokens_per_second": (number | null); "batch_size_mean": (number | null); "replayed"?: (number | null) };

/** The tokens of the whole prompt: `input_tokens` and `cache_read_input_tokens` of the same request together. */
export type TokenCount = { "input_tokens": number };

/** One token. All fields from `generated_text` on are null or absent except in the last event. A failure is an event
named `error` with the error body. */
export type TokenEvent = { "index": number; "token": TokenShown; "reasoning"?: (string | null); "generated_text": (string | null); "details": (StreamDetails | null); "top_tokens"?: ((TokenShown)[] | null); "id"?: (string | null); "model"?: (string | null); "version"?: (string | null); "digest"?: (string | null); "finish_reason"?: ("stop" | "length" | "deadline" | "error" | "content_filter" | null); "usage"?: (Usage | null); "timings"?: (Timings | null); "context"?: (Receipt | null); "session_id"?: (string | null); "tool_calls"?: ((CalledTool)[] | null); "guard"?: ((GuardFinding)[] | null) };

/** `logprob` is null where the request does not want it. `id` is null in an event without a token: a deadline's
end. */
export type TokenShown = { "id": (number | null); "text": string; "logprob": (number | null); "special": boolean };

/** Its key decides the answer: `inputs` gives TGI's, `prompt` or `messages` vLLM's. The template places `tools` as
for an answer; `strict` of a tool is no token. */
export type TokenizeBody = { "inputs"?: (string | null); "prompt"?: (string | null); "messages"?: ((ChatMessage)[] | null); "model"?: (string | null); "add_special_tokens"?: boolean; "add_generation_prompt"?: boolean; "continue_final_message"?: boolean; "tools"?: ((ToolFields)[] | null) };

export type TokenizeCount = { "count": number; "max_model_len": number; "tokens": (number)[] };

/** The files' own values; null where no file says. `model_max_length`: tokens. */
export type TokenizerInfo = { "tokenizer_class": (string | null); "bos_token": (string | null); "eos_token": (string | null); "pad_token": (string | null); "unk_token": (string | null); "chat_template": (string | null); "model_max_length": (number | null) };

/** A tool call of the model, as OpenAI's clients send it back. */
export type ToolCallFields = { "id": string; "type"?: "function"; "function": FunctionCallFields; "index"?: (number | null) };

export type ToolFields = { "type": "function"; "function": FunctionFields };

/** Of an input that a limit cut, `input` has what is whole; of one that is no JSON, its text as `INVALID_JSON`. */
export type ToolUseContent = { "type": "tool_use"; "id": string; "name": string; "input": Record<string, unknown> };

/** A trace in Chrome's format. Times of an event are microseconds behind `baseTimeNanoseconds`. */
export type Trace = { "schemaVersion": number; "displayTimeUnit": string; "baseTimeNanoseconds": number; "deviceProperties": (Record<string, unknown>)[]; "traceEvents": (Record<string, unknown>)[] };

export type TritonAnswer = { "model_name": string; "model_version": string; "text_output": string };

export type TritonError = { "error": string };

/** One message. Results of tools come in the user's, first. */
export type TurnMessage = { "role": "user" | "assistant" | "system"; "content": (string | (ContentBlock)[]) };

export type UnloadBody = { "parameters"?: (UnloadParameters | null) };

export type UnloadParameters = Record<string, unknown>;

/** The version takes no more requests; its answers in flight end first. */
export type Unloaded = { "name": string; "version": string; "unload": true };

/** Exact counts. `completion_tokens`: every sampled token of every sequence, with end tokens and stop strings.
`cached_tokens`: prompt tokens that the prefix cache had. `reasoning_tokens`: sampled tokens of a reasoning part;
absent where the answer cannot have one. */
export type Usage = { "prompt_tokens": number; "completion_tokens": number; "total_tokens": number; "cached_tokens": number; "prompt_tokens_before_truncation": number; "reasoning_tokens"?: (number | null) };

/** Newest first. */
export type UsagePage = { "data": (UsageShown)[]; "next_cursor": (string | null) };

/** What a key has used of a model in the hour or day that begins at `start`. `requests` are answers that have
ended; `refused` those that a quota refused, with null as `model`. `cached_tokens` are among `prompt_tokens`. */
export type UsageShown = { "start": string; "key": string; "model": (string | null); "requests": number; "refused": number; "prompt_tokens": number; "cached_tokens": number; "completion_tokens": number };

export type ValidationError = { "loc": ((string | number))[]; "msg": string; "type": string; "input"?: unknown; "ctx"?: Record<string, unknown> };

/** Where `ok` is false, `error` has the reason. */
export type Verified = { "ok": boolean; "error"?: (string | null); "files"?: (number | null); "digest"?: (string | null) };

/** `gate` is null where the version was not measured, or the alias `production` has no gate. The parsers are null
where the chat template says how answers are read. */
export type VersionDetails = { "model": string; "version": string; "digest": string; "created_at": string; "precision": string; "dtype": string; "architecture": string; "parameters": number; "context_window": number; "vocab_size": number; "license": string; "bytes": number; "aliases": (string)[]; "breaks_gate": (string)[]; "lineage": LineageShown; "report": (ReportShown | null); "report_state": "not_measured" | "measuring" | "measured"; "files": (VersionFileShown)[]; "layers": (LayerShown)[]; "card": (string | null); "gate": (GateShown | null); "reasoning_parser": (string | null); "tool_parser": (string | null) };

export type VersionFileShown = { "path": string; "size": number; "sha256": string };

/** `report` is null before the first measurement, and `report_state` says whether one is being made now. `bytes` is
the size of its files. `breaks_gate` has a phrase for every limit that the version breaks of a gated alias which
points to it: a report that was made after the promotion may show that. */
export type VersionShown = { "model": string; "version": string; "digest": string; "created_at": string; "precision": string; "dtype": string; "architecture": string; "parameters": number; "context_window": number; "vocab_size": number; "license": string; "bytes": number; "aliases": (string)[]; "breaks_gate": (string)[]; "lineage": LineageShown; "report": (ReportShown | null); "report_state": "not_measured" | "measuring" | "measured" };

/** Newest first. */
export type VotePage = { "data": (VoteShown)[]; "next_cursor": (string | null) };

/** `id` is the answer's. `created` is the last time that the vote was given. */
export type VoteShown = { "id": string; "model": (string | null); "version": (string | null); "digest": (string | null); "rating": 1 | -1; "preferred_over": (string | null); "comment": (string | null); "session_id": string; "created": string };

export interface Operations {
  "GET /": { body: never; answer: Root };
  "POST /": { body: GenerateBody; answer: (GenerateAnswer | ChoicesAnswer | TritonAnswer) };
  "POST /api/chat": { body: OllamaChatBody; answer: OllamaChatAnswer };
  "POST /api/embed": { body: OllamaEmbedBody; answer: OllamaEmbedAnswer };
  "POST /api/embeddings": { body: OllamaEmbeddingsBody; answer: OllamaEmbeddingsAnswer };
  "POST /api/generate": { body: OllamaGenerateBody; answer: OllamaGenerateAnswer };
  "GET /api/ps": { body: never; answer: OllamaRunningModels };
  "POST /api/show": { body: OllamaShowBody; answer: OllamaShown };
  "GET /api/tags": { body: never; answer: OllamaModels };
  "GET /api/version": { body: never; answer: OllamaVersion };
  "POST /chat_tokenize": { body: ChatTokenizeBody; answer: ChatTokens };
  "POST /detokenize": { body: DetokenizeBody; answer: Detokenized };
  "POST /generate": { body: GenerateBody; answer: (GenerateAnswer | ChoicesAnswer | TritonAnswer) };
  "POST /generate_stream": { body: GenerateBody; answer: unknown };
  "GET /health": { body: never; answer: Status };
  "GET /healthz": { body: never; answer: Status };
  "GET /info": { body: never; answer: Info };
  "GET /livez": { body: never; answer: Status };
  "GET /metrics": { body: never; answer: unknown };
  "GET /readyz": { body: never; answer: Status };
  "POST /tokenize": { body: TokenizeBody; answer: ((TextToken)[] | TokenizeCount) };
  "GET /tokenizer_info": { body: never; answer: TokenizerInfo };
  "GET /v1/audit": { body: never; answer: AuditPage };
  "GET /v1/batches": { body: never; answer: BatchPage };
  "POST /v1/batches": { body: BatchBody; answer: BatchShown };
  "GET /v1/batches/{batch_id}": { body: never; answer: BatchShown };
  "POST /v1/batches/{batch_id}/cancel": { body: never; answer: BatchShown };
  "GET /v1/batching": { body: never; answer: Batching };
  "GET /v1/chat/completions": { body: never; answer: StoredCompletions };
  "POST /v1/chat/completions": { body: ChatBody; answer: ChatCompletion };
  "DELETE /v1/chat/completions/{completion_id}": { body: never; answer: DeletedCompletion };
  "GET /v1/chat/completions/{completion_id}": { body: never; answer: StoredCompletion };
  "POST /v1/chat/completions/{completion_id}": { body: MetadataBody; answer: StoredCompletion };
  "GET /v1/chat/completions/{completion_id}/messages": { body: never; answer: StoredMessages };
  "POST /v1/completions": { body: CompletionBody; answer: TextCompletion };
  "POST /v1/context/preview": { body: GenerateBody; answer: Preview };
  "POST /v1/conversations": { body: ConversationBody; answer: ConversationShown };
  "DELETE /v1/conversations/{conversation_id}": { body: never; answer: DeletedConversation };
  "GET /v1/conversations/{conversation_id}": { body: never; answer: ConversationShown };
  "POST /v1/conversations/{conversation_id}": { body: MetadataBody; answer: ConversationShown };
  "GET /v1/conversations/{conversation_id}/items": { body: never; answer: ConversationItems };
  "POST /v1/conversations/{conversation_id}/items": { body: ConversationItemsBody; answer: ConversationItems };
  "DELETE /v1/conversations/{conversation_id}/items/{item_id}": { body: never; answer: ConversationShown };
  "GET /v1/conversations/{conversation_id}/items/{item_id}": { body: never; answer: ConversationItem };
  "GET /v1/deployments": { body: never; answer: DeploymentList };
  "POST /v1/deployments": { body: DeploymentBody; answer: DeploymentShown };
  "DELETE /v1/deployments/{reference}": { body: never; answer: DeploymentShown };
  "POST /v1/embeddings": { body: EmbeddingBody; answer: Embeddings };
  "GET /v1/feedback": { body: never; answer: VotePage };
  "POST /v1/feedback": { body: FeedbackBody; answer: VoteShown };
  "GET /v1/feedback/export": { body: never; answer: unknown };
  "GET /v1/feedback/summary": { body: never; answer: Tallies };
  "GET /v1/files": { body: never; answer: FilePage };
  "POST /v1/files": { body: unknown; answer: FileShown };
  "DELETE /v1/files/{file_id}": { body: never; answer: FileDeleted };
  "GET /v1/files/{file_id}": { body: never; answer: FileShown };
  "GET /v1/files/{file_id}/content": { body: never; answer: unknown };
  "GET /v1/instances": { body: never; answer: InstanceList };
  "GET /v1/jobs": { body: never; answer: JobList };
  "DELETE /v1/jobs/{id}": { body: never; answer: JobShown };
  "GET /v1/jobs/{id}": { body: never; answer: JobShown };
  "GET /v1/keys": { body: never; answer: KeyList };
  "POST /v1/keys": { body: KeyBody; answer: KeyShown };
  "DELETE /v1/keys/{id}": { body: never; answer: unknown };
  "GET /v1/keys/{id}": { body: never; answer: KeyShown };
  "PATCH /v1/keys/{id}": { body: KeyChangeBody; answer: KeyShown };
  "POST /v1/keys/{id}/rotate": { body: RotateBody; answer: KeyShown };
  "GET /v1/knowledge": { body: never; answer: KnowledgePage };
  "POST /v1/knowledge": { body: KnowledgeBody; answer: KnowledgeShown };
  "DELETE /v1/knowledge/{knowledge_id}": { body: never; answer: unknown };
  "GET /v1/knowledge/{knowledge_id}": { body: never; answer: KnowledgeShown };
  "GET /v1/live": { body: never; answer: unknown };
  "POST /v1/messages": { body: MessagesBody; answer: AnthropicMessage };
  "POST /v1/messages/count_tokens": { body: CountTokensBody; answer: TokenCount };
  "GET /v1/models": { body: never; answer: (Models | AnthropicModels) };
  "GET /v1/models/{id}": { body: never; answer: (Model | AnthropicModel) };
  "GET /v1/profiles": { body: never; answer: ProfilePage };
  "POST /v1/profiles": { body: ProfileBody; answer: ProfileShown };
  "GET /v1/profiles/compare": { body: never; answer: ComparedProfiles };
  "GET /v1/profiles/{id}": { body: never; answer: ProfileShown };
  "GET /v1/profiles/{id}/trace": { body: never; answer: Trace };
  "GET /v1/repository/models": { body: never; answer: ModelPage };
  "GET /v1/repository/models/{name}": { body: never; answer: ModelVersions };
  "GET /v1/repository/models/{name}/aliases": { body: never; answer: Aliases };
  "DELETE /v1/repository/models/{name}/aliases/{alias}": { body: never; answer: AliasShown };
  "GET /v1/repository/models/{name}/aliases/{alias}": { body: never; answer: AliasShown };
  "PUT /v1/repository/models/{name}/aliases/{alias}": { body: AliasBody; answer: AliasShown };
  "GET /v1/repository/models/{name}/aliases/{alias}/history": { body: never; answer: Changes };
  "POST /v1/repository/models/{name}/aliases/{alias}/rollback": { body: ReasonBody; answer: AliasShown };
  "DELETE /v1/repository/models/{name}/aliases/{alias}/rollout": { body: never; answer: RolloutShown };
  "GET /v1/repository/models/{name}/aliases/{alias}/rollout": { body: never; answer: Rollouts };
  "PUT /v1/repository/models/{name}/aliases/{alias}/rollout": { body: RolloutBody; answer: RunningRollout };
  "POST /v1/repository/models/{name}/aliases/{alias}/rollout/promote": { body: CandidateBody; answer: RolloutShown };
  "GET /v1/repository/models/{name}/compare": { body: never; answer: ComparedVersions };
  "POST /v1/repository/models/{name}/versions": { body: ImportBody; answer: JobShown };
  "DELETE /v1/repository/models/{name}/versions/{version}": { body: never; answer: Deleted };
  "GET /v1/repository/models/{name}/versions/{version}": { body: never; answer: VersionDetails };
  "PATCH /v1/repository/models/{name}/versions/{version}": { body: ParsersBody; answer: ParsersShown };
  "POST /v1/repository/models/{name}/versions/{version}/evaluate": { body: EvaluateBody; answer: JobShown };
  "POST /v1/repository/models/{name}/versions/{version}/quantize": { body: QuantizeBody; answer: JobShown };
  "POST /v1/repository/models/{name}/versions/{version}/verify": { body: never; answer: Verified };
  "POST /v1/responses": { body: ResponseBody; answer: ResponseShown };
  "POST /v1/responses/input_tokens": { body: InputTokensBody; answer: InputTokens };
  "DELETE /v1/responses/{response_id}": { body: never; answer: DeletedResponse };
  "GET /v1/responses/{response_id}": { body: never; answer: ResponseShown };
  "POST /v1/responses/{response_id}/cancel": { body: never; answer: ResponseShown };
  "GET /v1/responses/{response_id}/input_items": { body: never; answer: ListedItems };
  "GET /v1/sessions": { body: never; answer: SessionPage };
  "POST /v1/sessions": { body: SessionBody; answer: SessionShown };
  "POST /v1/sessions/import": { body: never; answer: SessionShown };
  "DELETE /v1/sessions/{session_id}": { body: never; answer: unknown };
  "GET /v1/sessions/{session_id}": { body: never; answer: SessionShown };
  "PATCH /v1/sessions/{session_id}": { body: SessionBody; answer: SessionShown };
  "GET /v1/sessions/{session_id}/export": { body: never; answer: unknown };
  "POST /v1/sessions/{session_id}/fork": { body: ForkBody; answer: SessionShown };
  "GET /v1/sessions/{session_id}/messages": { body: never; answer: MessagePage };
  "DELETE /v1/sessions/{session_id}/messages/{message_id}": { body: never; answer: SessionShown };
  "PATCH /v1/sessions/{session_id}/messages/{message_id}": { body: MessageBody; answer: MessageShown };
  "POST /v1/sessions/{session_id}/regenerate": { body: RegenerateBody; answer: GenerateAnswer };
  "GET /v1/usage": { body: never; answer: UsagePage };
  "GET /v2": { body: never; answer: ServerMetadata };
  "GET /v2/health/live": { body: never; answer: Live };
  "GET /v2/health/ready": { body: never; answer: Ready };
  "GET /v2/models/{model}": { body: never; answer: ModelMetadata };
  "POST /v2/models/{model}/generate": { body: TextBody; answer: TextAnswer };
  "POST /v2/models/{model}/generate_stream": { body: TextBody; answer: unknown };
  "POST /v2/models/{model}/infer": { body: InferBody; answer: InferAnswer };
  "GET /v2/models/{model}/ready": { body: never; answer: ModelReady };
  "GET /v2/models/{model}/versions/{version}": { body: never; answer: ModelMetadata };
  "POST /v2/models/{model}/versions/{version}/generate": { body: TextBody; answer: TextAnswer };
  "POST /v2/models/{model}/versions/{version}/generate_stream": { body: TextBody; answer: unknown };
  "POST /v2/models/{model}/versions/{version}/infer": { body: InferBody; answer: InferAnswer };
  "GET /v2/models/{model}/versions/{version}/ready": { body: never; answer: ModelReady };
  "POST /v2/repository/index": { body: IndexBody; answer: RepositoryIndex };
  "POST /v2/repository/models/{model}/load": { body: LoadBody; answer: Loaded };
  "POST /v2/repository/models/{model}/unload": { body: UnloadBody; answer: Unloaded };
}
