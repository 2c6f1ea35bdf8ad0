"""Tests that `make test` runs though they take seconds: one of each promise that only a real engine, process, database,
browser or client can show. The others of their files are in `make test-all`."""

from __future__ import annotations

from typing import Final

PROOFS: Final[dict[str, str]] = {
    # What an answer is
    "tests/golden/test_architectures.py::test_tokens_equal_generate[llama-24-True]": "the tokens of transformers",
    "tests/golden/test_invariance.py::test_alone_or_in_a_crowd[llama-int8]": "no answer differs in a crowd: int8",
    "tests/golden/test_invariance.py::test_alone_or_in_a_crowd[gemma2-bf16]": "and bf16, with windows",
    "tests/golden/test_adapters.py::test_alone_or_in_a_crowd_of_adapters[gemma2-bf16-native]": "base beside adapters",
    "tests/golden/test_adapters.py::test_tokens_equal_peft[llama-native]": "the tokens of PEFT",
    "tests/golden/test_speculation.py::test_the_same_with_drafts[llama-int8-native]": "drafts change nothing",
    "tests/golden/test_grammars.py::test_alone_or_in_a_crowd[native]": "a schema is kept, drafted or not",
    "tests/golden/test_precisions.py::test_what_each_precision_loses": "bounds of each precision",
    "tests/golden/test_file_versions.py::test_it_predicts_what_the_bf16_version_predicts": "blocks of a GGUF file",
    "tests/real/test_one_look.py::test_a_plain_question_is_answered_alone_and_in_a_crowd": "a pretrained model",
    # The machines that look for what nobody thought of
    "tests/property/test_scheduler_machine.py::test_scheduler": "scheduler over memory and disk",
    "tests/property/test_scheduler_machine.py::test_a_planted_defect_is_found": "the machine sees a leak",
    "tests/property/test_blocks_machine.py::test_blocks": "no block is lost or held twice",
    "tests/property/test_sessions_machine.py::TestOnSqlite::runTest": "sessions are what a model of them says",
    "tests/property/test_trimming.py::test_policies": "what is sent fits, and pins stay",
    # What dies
    "tests/faults/test_engine_process.py::test_a_killed_engine_is_a_pause[1]": "an engine killed in a stream",
    "tests/faults/test_sessions_crash.py::test_acknowledged_turns_survive[sqlite]": "killed behind a stored turn",
    "tests/faults/test_publish_crash.py::test_old_or_new[promote]": "killed at every call of a promotion",
    "tests/faults/test_store_faults.py::test_every_operation[no write succeeds]": "a disk that takes nothing",
    "tests/faults/test_publish_faults.py::test_refused_or_made[promote-full]": "full at every call of a promotion",
    "tests/faults/test_sessions_database.py::test_full": "a full disk",
    # What runs together
    "tests/api/test_repository.py::test_swaps_under_load_fail_nobody_and_mix_nothing": "a swap under load",
    "tests/api/test_instances.py::test_a_chat_of_a_hundred_turns_alternates": "one chat, two instances, PostgreSQL",
    "tests/unit/test_evaluation.py::test_a_report_of_the_demo_model": "quantized, measured, judged",
    # What a person or a program meets
    "tests/api/test_every_field.py::test_every_field_acts_or_is_refused_by_name": "no field is accepted and idle",
    "tests/e2e/test_serve.py::test_start_ends_with_one_real_answer": "dosirak serve, which is bentoml serve",
    "tests/e2e/test_serve.py::test_api_process_is_small_and_has_no_torch": "the API's process",
    "tests/e2e/test_serve.py::test_streamed_and_unary_answers_are_the_same[demo:2]": "a stream is its answer",
    "tests/ui/test_playground.py::test_regenerate_replaces_the_last_answer_and_branches_off_an_earlier_one": "a page",
    "tests/clients/test_openai.py::test_openai": "OpenAI's client",
    "tests/clients/test_huggingface.py::test_huggingface_text_generation": "TGI's client",
    "tests/clients/test_tritonclient.py::test_tritonclient": "KServe's client",
    "tests/test_architecture.py::test_api_process_imports_no_torch": "no torch in the API",
}
"""Functions, or single cases of them, and what each shows."""
