"""Public reports of wrong answers of other servers, and the test that shows what this server does there.

A report is the number of an issue or a pull request of its project, or of a published weakness. Its sentence says what
went wrong there; `proof` is a function of the tests, or a single case.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class PublicReport:
    source: str
    wrong: str
    proof: str


REPORTS: Final[dict[str, tuple[PublicReport, ...]]] = {
    "tokenizing": (
        PublicReport(
            "huggingface/transformers#29279",
            "marks of the template in a user's message became control tokens",
            "tests/unit/test_tokenizer.py::test_control_tokens_in_user_text_are_transformers_sanitized_ids",
        ),
        PublicReport(
            "sgl-project/sglang#888",
            "a chat began with the beginning token twice: the template's and the tokenizer's",
            "tests/unit/test_tokenizer.py::test_chats_have_transformers_ids",
        ),
        PublicReport(
            "vllm-project/vllm#27486",
            "a prompt that the client had rendered got a second beginning token",
            "tests/api/test_special_tokens.py::test_a_prompt_that_the_client_rendered_has_bos_once",
        ),
        PublicReport(
            "ggml-org/llama.cpp#3287",
            "a text that was tokenized and turned back had a space more",
            "tests/api/test_tokenizing.py::test_tokens_become_the_text_that_gave_them",
        ),
        PublicReport(
            "google/sentencepiece#1043",
            "tokens that were decoded one by one lost the spaces between words",
            "tests/property/test_detokenizer_random.py::test_deltas_join_to_the_full_decode",
        ),
        PublicReport(
            "InternLM/lmdeploy#1743",
            "a completion lost the blank between the prompt and its first word",
            "tests/api/test_told_tokens.py::test_the_first_word_behind_a_raw_prompt_keeps_its_blank",
        ),
        PublicReport(
            "ggml-org/llama.cpp#7049",
            "the word behind an added token got other ids than the library's tokenizer gives",
            "tests/unit/test_tokenizer.py::test_chats_have_transformers_ids",
        ),
    ),
    "templates": (
        PublicReport(
            "huggingface/transformers#31041",
            "`tojson` wrote text beyond ASCII as escapes into the prompt",
            "tests/unit/test_template.py::test_ordinary_templates_write_what_transformers_writes",
        ),
        PublicReport(
            "openvinotoolkit/model_server#4151",
            "brackets around a call were written as entities of HTML",
            "tests/unit/test_template.py::test_ordinary_templates_write_what_transformers_writes",
        ),
        PublicReport(
            "vllm-project/vllm#16774",
            "a chat that the template does not take was a failure of the server",
            "tests/api/test_system_messages.py::test_a_chat_that_the_template_refuses_is_refused_in_its_words",
        ),
        PublicReport(
            "ggml-org/llama.cpp#27367",
            "a system message in the middle of a chat was a failure of the server",
            "tests/api/test_system_messages.py::test_a_template_that_takes_none_refuses_it_by_name",
        ),
        PublicReport(
            "vllm-project/vllm#21089",
            "an assistant's empty message made the whole chat be refused",
            "tests/api/test_openai.py::test_an_empty_text_is_a_text",
        ),
        PublicReport(
            "0xPlaygrounds/rig#1362",
            "a content that is a list of no parts was refused",
            "tests/api/test_openai.py::test_an_empty_text_is_a_text",
        ),
        PublicReport(
            "CVE-2025-61620",
            "a template took the server's processor and memory for as long as it liked",
            "tests/unit/test_template.py::test_bombs_are_refused_at_once",
        ),
    ),
    "stops and ends": (
        PublicReport(
            "vllm-project/vllm#3574",
            "a stream showed the beginning of a stop string",
            "tests/api/test_streams.py::test_stop_string_is_in_no_event",
        ),
        PublicReport(
            "vllm-project/vllm#2577",
            "a stop string of several tokens was not found in a stream",
            "tests/unit/test_detokenizer.py::test_the_stop_string_completed_first_wins_however_tokens_cut",
        ),
        PublicReport(
            "vllm-project/vllm#2123",
            "a stop string that is a control token never matched",
            "tests/api/test_fields.py::test_a_stop_string_that_is_a_control_token_acts",
        ),
        PublicReport(
            "vllm-project/vllm#2538",
            "the text of a stop token stood at the end of the answer",
            "tests/api/test_fields.py::test_a_stop_token_is_not_in_the_text",
        ),
        PublicReport(
            "ollama/ollama#3629",
            "an empty list of stop strings took the model's own ends away",
            "tests/api/test_fields.py::test_an_empty_list_of_stop_strings_leaves_the_versions_own_ends",
        ),
        PublicReport(
            "vllm-project/vllm#11089",
            "an empty stop string made every answer empty",
            "tests/unit/test_detokenizer.py::test_an_empty_stop_string_stops_nothing",
        ),
        PublicReport(
            "vllm-project/vllm#2947",
            "of the ends that a model's generation_config.json lists, one counted",
            "tests/unit/test_tokenizer.py::test_stop_tokens_are_the_models_and_the_tokenizers",
        ),
        PublicReport(
            "ggml-org/llama.cpp#6745",
            "a chat never ended, because the file named another end than that of a turn",
            "tests/unit/test_gguf.py::test_tokens_end_an_answer_by_their_texts",
        ),
        PublicReport(
            "ggml-org/llama.cpp#7198",
            "an answer that its limit cut was told as one that had ended",
            "tests/api/test_openai.py::test_lengths",
        ),
        PublicReport(
            "vllm-project/vllm#45807",
            "Anthropic's clients were not told which stop sequence had ended the answer",
            "tests/api/test_anthropic.py::test_stop_reasons",
        ),
    ),
    "streams": (
        PublicReport(
            "ggml-org/llama.cpp#4036",
            "a character of several tokens was streamed as replacement characters",
            "tests/api/test_streams.py::test_no_event_splits_a_character",
        ),
        PublicReport(
            "ollama/ollama#4448",
            "a stream could not tell its usage in a last chunk without choices",
            "tests/api/test_openai.py::test_usage_in_streams",
        ),
        PublicReport(
            "EricLBuehler/mistral.rs#1874",
            "a stream stayed open behind its error",
            "tests/api/test_keep_alive.py::test_an_error_after_the_headers_is_the_last_event",
        ),
        PublicReport(
            "preloop/preloop#121",
            "a failure before the first token was an empty stream of status 200",
            "tests/api/test_streams.py::test_failure_before_the_first_token_is_a_status",
        ),
        PublicReport(
            "waybarrios/vllm-mlx#101",
            "the event that ends a stream did not always come",
            "tests/api/test_openai.py::test_chat_stream",
        ),
    ),
    "logprobs": (
        PublicReport(
            "vllm-project/vllm#47815",
            "offsets of a stream forgot the echoed prompt",
            "tests/api/test_openai.py::test_completion_stream",
        ),
        PublicReport(
            "vllm-project/vllm#6521",
            "a prompt that was to be scored without an answer ended the engine",
            "tests/api/test_openai.py::test_an_echo_alone_scores_the_prompt",
        ),
        PublicReport(
            "vllm-project/vllm#5334",
            "the texts of an echo's tokens were those of all tokens before them too",
            "tests/api/test_told_tokens.py::test_each_token_begins_at_its_offset",
        ),
        PublicReport(
            "xorbitsai/inference#5270",
            "`logprobs: 0` was read as no wish for logprobs, though the token's own is wanted",
            "tests/api/test_openai.py::test_echo_with_logprobs_as_lm_eval_reads_it",
        ),
        PublicReport(
            "ggml-org/llama.cpp#27174",
            "an echo had no logprobs of the prompt, so evaluations read chance",
            "tests/golden/test_scoring.py::test_lm_eval_log_likelihoods",
        ),
        PublicReport(
            "vllm-project/vllm#5344",
            "logprobs of a prompt whose beginning was cached ended the server",
            "tests/unit/test_scheduler.py::test_prompt_logprobs_switch_prefix_reuse_off",
        ),
    ),
    "structured output": (
        PublicReport(
            "vllm-project/vllm#12201",
            "the bounds of a list's length were ignored",
            "tests/unit/test_json_schema.py::test_no_word_is_ignored",
        ),
        PublicReport(
            "ggml-org/llama.cpp#13116",
            "a list that must be empty made a grammar that did not compile",
            "tests/unit/test_json_schema.py::test_an_object_of_no_properties_and_a_very_long_text_are_schemas",
        ),
        PublicReport(
            "ggml-org/llama.cpp#25923",
            "one tool without parameters, or with a very long text, made the whole request fail",
            "tests/unit/test_json_schema.py::test_an_object_of_no_properties_and_a_very_long_text_are_schemas",
        ),
        PublicReport(
            "ggml-org/llama.cpp#19051",
            "a pattern that could not be read gave free text with status 200",
            "tests/api/test_openai.py::test_a_pattern_that_cannot_be_followed_is_no_free_text",
        ),
        PublicReport(
            "kekzl/imp#1255",
            "a pattern with anchors was not followed",
            "tests/unit/test_grammars.py::test_a_regex_matches_the_whole_answer",
        ),
        PublicReport(
            "dottxt-ai/outlines#725",
            "a class of characters left out those of several tokens",
            "tests/unit/test_grammars.py::test_a_regex_matches_the_whole_answer",
        ),
        PublicReport(
            "dottxt-ai/outlines#823",
            "a discriminated union, as Pydantic writes it, was a failure of the server",
            "tests/unit/test_json_schema.py::test_a_discriminated_union_is_kept",
        ),
        PublicReport(
            "ollama/ollama#8461",
            "the keys of an answer did not have the order of the schema",
            "tests/unit/test_json_schema.py::test_keys_come_in_the_schemas_order_and_without_needless_blanks",
        ),
        PublicReport(
            "sgl-project/sglang#8250",
            "an answer went on with blanks up to its limit",
            "tests/unit/test_json_schema.py::test_keys_come_in_the_schemas_order_and_without_needless_blanks",
        ),
        PublicReport(
            "huggingface/text-generation-inference#1834",
            "a large schema ended the server",
            "tests/api/test_hostile_grammars.py::test_a_grammar_that_ends_its_process_leaves_the_others",
        ),
        PublicReport(
            "ggml-org/llama.cpp#17352",
            "a repetition of billions took all memory",
            "tests/api/test_hostile_grammars.py::test_some_hostile_grammars",
        ),
    ),
    "tools and reasoning": (
        PublicReport(
            "ollama/ollama#12557",
            "a streamed answer lost its calls",
            "tests/api/test_tools.py::test_calls_are_apart_from_content_streamed_or_not",
        ),
        PublicReport(
            "BerriAI/litellm#12481",
            "an answer of calls had another finish reason than `tool_calls`",
            "tests/api/test_tools.py::test_calls_are_apart_from_content_streamed_or_not",
        ),
        PublicReport(
            "ollama/ollama#10164",
            "a tool whose enum has numbers was refused",
            "tests/api/test_tools.py::test_values_of_an_enum_may_be_numbers",
        ),
    ),
    "seeds and ids": (
        PublicReport(
            "vllm-project/vllm#51226",
            "a seed was ignored where a neighbour in the batch had none",
            "tests/golden/test_invariance.py::test_alone_or_in_a_crowd",
        ),
        PublicReport(
            "Blaizzy/mlx-vlm#1818",
            "without a seed every answer was the same",
            "tests/api/test_generate.py::test_seed_is_drawn_and_reported",
        ),
        PublicReport(
            "vllm-project/vllm#10583",
            "two requests of one id at once broke the engine",
            "tests/api/test_generate.py::test_requests_of_one_id_at_once_are_two",
        ),
    ),
    "truncation and cancelling": (
        PublicReport(
            "ollama/ollama#3839",
            "a prompt past the window lost its beginning, and the status was 200",
            "tests/api/test_openai.py::test_overflow_has_openais_code",
        ),
        PublicReport(
            "ollama/ollama#14259",
            "old messages were left out, and nothing in the answer said so",
            "tests/api/test_ollama_fields.py::test_truncate_says_whether_old_turns_may_go",
        ),
        PublicReport(
            "vllm-project/vllm#9428",
            "an answer went on when its client had left",
            "tests/api/test_disconnect.py::test_leaving_before_the_first_token",
        ),
        PublicReport(
            "cubist38/mlx-openai-server#269",
            "a stream went on in the engine when its client had left",
            "tests/api/test_disconnect.py::test_leaving_in_the_middle",
        ),
    ),
    "caches and adapters": (
        PublicReport(
            "vllm-project/vllm#3264",
            "an adapter read the cached prefix of another",
            "tests/unit/test_block_manager.py::test_a_prefix_is_known_by_adapter",
        ),
        PublicReport(
            "vllm-project/vllm#42125",
            "an adapter that was loaded again under its name read the cache of the earlier weights",
            "tests/unit/test_repository.py::test_a_version_is_never_replaced_nor_reused",
        ),
        PublicReport(
            "vllm-project/vllm#55193",
            "an adapter that fits no module was served as the base",
            "tests/unit/test_adapters.py::test_weights_that_do_not_fit",
        ),
    ),
    "imports": (
        PublicReport(
            "huggingface/transformers#34759",
            "a tensor that the checkpoint lacks was random",
            "tests/unit/test_fit.py::test_tensors_that_do_not_fit",
        ),
        PublicReport(
            "vllm-project/vllm#51665",
            "a head that the config does not tie and the checkpoint lacks was not initialised",
            "tests/unit/test_fit.py::test_tensors_that_do_not_fit",
        ),
        PublicReport(
            "vllm-project/vllm#9280",
            "an adapter with whole modules beside its pairs ended the engine at its first request",
            "tests/unit/test_adapters.py::test_what_is_not_served_is_refused_by_name",
        ),
        PublicReport(
            "CVE-2025-32434",
            "weights in Python's pickle ran code when they were loaded",
            "tests/unit/test_importing.py::test_pickles_and_code_are_refused",
        ),
        PublicReport(
            "CVE-2026-27905",
            "a link in an archive led out of the directory",
            "tests/unit/test_archive.py::test_odd_archives_are_refused",
        ),
        PublicReport(
            "huggingface/transformers#38870",
            "a tied head that the checkpoint does not repeat was not loaded",
            "tests/golden/test_file_versions.py::test_it_predicts_what_the_bf16_version_predicts",
        ),
    ),
    "metrics and registry": (
        PublicReport(
            "vllm-project/vllm#31503",
            "requests that clients left were never counted",
            "tests/api/test_metric_series.py::test_a_client_that_leaves_is_a_cause",
        ),
        PublicReport(
            "vllm-project/vllm#55634",
            "totals had the tokens of requests that clients left, and figures of requests had not",
            "tests/api/test_metric_series.py::test_an_answer_that_a_client_left_counts_the_same_everywhere",
        ),
        PublicReport(
            "mozilla-ai/otari#264",
            "every path that somebody asked for made a series of its own",
            "tests/api/test_metrics.py::test_random_paths_and_names_make_no_series",
        ),
        PublicReport(
            "sgl-project/sglang#12618",
            "panels of the dashboard asked for metrics of older names",
            "tests/unit/test_monitoring.py::test_panels_and_alerts_ask_for_metrics_that_exist",
        ),
        PublicReport(
            "mlflow/mlflow#24825",
            "an alias still pointed to a version that had been deleted",
            "tests/api/test_repository.py::test_deletions",
        ),
        PublicReport(
            "mlflow/mlflow#16734",
            "lists of models showed no aliases",
            "tests/api/test_repository.py::test_models_are_listed_in_pages_and_searched",
        ),
        PublicReport(
            "mlflow/mlflow#2169",
            "nobody could say which version had been in production",
            "tests/api/test_repository.py::test_rollback_and_what_was_in_production_then",
        ),
        PublicReport(
            "triton-inference-server/server#5757",
            "requests failed while a model was exchanged",
            "tests/api/test_repository.py::test_swaps_under_load_fail_nobody_and_mix_nothing",
        ),
    ),
    "security": (
        PublicReport(
            "vllm-project/vllm#16529",
            "a bias for a token that the model lacks ended the engine for all",
            "tests/api/test_fields.py::test_a_token_that_the_model_lacks_never_reaches_the_engine",
        ),
        PublicReport(
            "vllm-project/vllm#54195",
            "a stop token that the model lacks ended the engine for all",
            "tests/api/test_fields.py::test_a_token_that_the_model_lacks_never_reaches_the_engine",
        ),
        PublicReport(
            "mlflow/mlflow#19122",
            "a model's name led out of the directory of models",
            "tests/unit/test_manifest.py::test_refused_references",
        ),
        PublicReport(
            "CVE-2025-6242",
            "the server fetched addresses of its own network that a message named",
            "tests/api/test_openai.py::test_an_address_in_a_part_is_refused_and_not_asked_for",
        ),
        PublicReport(
            "CVE-2025-62426",
            "variables for the template replaced those of the server, the template itself among them",
            "tests/api/test_bad_inputs.py::test_wrong_fields_in_openais_words",
        ),
    ),
    "batches and embeddings": (
        PublicReport(
            "ollama/ollama#6187",
            "a text had another vector in a list than alone",
            "tests/golden/test_embeddings.py::test_the_same_bits_alone_and_in_a_crowd",
        ),
        PublicReport(
            "googleapis/js-genai#1207",
            "results of a batch could not be told apart, for they had neither order nor name",
            "tests/api/test_batches.py::test_openai_s_client",
        ),
        PublicReport(
            "vllm-project/vllm#5935",
            "vectors could not be had in base64, which OpenAI's client asks for",
            "tests/api/test_embeddings.py::test_base64_holds_the_same_numbers",
        ),
    ),
    "dialects": (
        PublicReport(
            "BerriAI/litellm#37118",
            "Anthropic's stop sequences were taken and did nothing",
            "tests/api/test_anthropic.py::test_stop_reasons",
        ),
        PublicReport(
            "ollama/ollama#10857",
            "an option beside `options` was taken and did nothing",
            "tests/api/test_ollama_fields.py::test_an_option_at_the_wrong_place_is_refused_by_name",
        ),
        PublicReport(
            "langchain-ai/langchain#12892",
            "a client that writes its unset options as null lost its stop strings",
            "tests/api/test_ollama_fields.py::test_options_that_are_null_ask_for_nothing",
        ),
        PublicReport(
            "mudler/LocalAI#4716",
            "a finish reason was none of OpenAI's, and a client failed",
            "tests/api/test_openai.py::test_finish_reason_stays_in_openais_enumeration",
        ),
    ),
}
"""By what they are about."""
