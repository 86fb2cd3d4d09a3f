"""Each row of the tables in docs/operate/engines.md has tests, which are named here."""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tests.architecture.test_house_rules import ROOT

PAGE: Final = ROOT / "docs" / "operate" / "engines.md"
UPSTREAM: Final = "tests/service/inference_svc/upstream"
E2E: Final = "tests/e2e/test_upstreams.py"
SERVICES: Final = "tests/e2e/test_upstream_services.py"
FEATURES: Final = "tests/unit/inference_svc/upstream/test_features.py"
RPC: Final = "tests/unit/inference_svc/rpc/test_upstream_features.py"
CONTINUATION: Final = "tests/unit/inference_svc/engine_client/test_continuation.py"
ADMISSION: Final = f"{UPSTREAM}/test_upstream_admission.py"
ADAPTERS: Final = f"{UPSTREAM}/test_upstream_adapters.py"
LOADS: Final = f"{ADAPTERS}::test_an_engine_is_told_to_load_what_it_lacks_from_the_folder"
ROUTES: Final = f"{UPSTREAM}/test_upstream_probes.py::test_the_page_names_the_routes_that_are_asked"
TEXT: Final = f"{UPSTREAM}/test_text_mode.py"
TEXT_E2E: Final = "tests/e2e/test_text_mode.py"
TEXT_RPC: Final = "tests/unit/inference_svc/rpc/test_text_mode.py"
VECTORS: Final = f"{UPSTREAM}/test_upstream_embeddings.py"
VECTORS_E2E: Final = "tests/e2e/test_engine_embeddings.py"
ROUTER: Final = "tests/unit/inference_svc/vllm_grpc"
ROUTER_E2E: Final = "tests/e2e/test_vllm_engine.py"
POOL: Final = "tests/unit/inference_svc/model_pool/test_upstreams.py"

TESTS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "What an engine honours": {
        "chat, completions, streams, several choices, stop texts, logit bias": (
            f"{E2E}::test_a_chat_streams_from_the_engine",
            f"{E2E}::test_seeds_biases_choices_and_stop_texts_reach_or_end_the_engine",
        ),
        "seeds": (f"{E2E}::test_seeds_biases_choices_and_stop_texts_reach_or_end_the_engine",),
        "tool calls, reasoning, thinking budgets": (
            f"{E2E}::test_calls_of_tools_are_parsed",
            f"{UPSTREAM}/test_upstream_turns.py::test_a_reasoning_ends_at_its_budget",
        ),
        "regex, choices, grammars without tools or reasoning": (
            f"{RPC}::test_an_output_format_goes_to_the_engine_as_the_caller_wrote_it",
            f"{UPSTREAM}/test_engine_stand_in.py::test_the_probe_finds_what_it_found_at_the_engine",
        ),
        "JSON Schema without tools or reasoning": (
            f"{E2E}::test_an_answer_follows_a_json_schema",
            f"{FEATURES}::test_what_an_engine_may_ignore_in_a_schema_is_named",
            f"{FEATURES}::test_structures_references_and_fixed_values_are_enforced",
        ),
        "required tool calls, `strict` tools, formats beside tools or after reasoning": (
            f"{RPC}::test_calls_that_must_be_enforced_need_an_engine_that_takes_grammars",
        ),
        "calls of tools that are not strict": (
            f"{RPC}::test_calls_of_tools_that_are_not_strict_are_free_and_named_as_ignored",
        ),
        "batches, assistants, threads, runs, responses, vector stores, limits, usage, traces": (
            f"{E2E}::test_a_batch_runs_over_the_engine",
            f"{E2E}::test_a_run_of_an_assistant_answers_over_the_engine",
            f"{E2E}::test_a_response_in_the_background_outlives_the_engine",
            f"{SERVICES}::test_limits_count_what_reaches_the_engine",
            f"{SERVICES}::test_a_response_finds_passages_of_a_vector_store",
            f"{SERVICES}::test_a_chat_over_an_engine_is_traced_as_one_of_a_local_model",
        ),
        "a model's default sampling": (f"{FEATURES}::test_only_fields_that_act_must_be_honoured",),
        "embeddings": (
            f"{VECTORS_E2E}::test_vectors_of_the_engine_come_by_each_route",
            f"{VECTORS}::test_an_engine_that_only_chats_is_not_asked_to_embed",
            f"{E2E}::test_what_the_engine_cannot_do_is_refused_by_name",
        ),
        "pictures": (
            f"{TEXT_RPC}::test_pictures_pass_as_data_urls_with_the_type_of_their_bytes",
            f"{FEATURES}::test_what_the_engine_lacks_is_refused_by_name",
        ),
        "sounds, reranking, log probabilities of prompts,"
        " `deterministic`, snapshots, GGUF adapters": (
            f"{FEATURES}::test_what_the_engine_lacks_is_refused_by_name",
            f"{VECTORS_E2E}::test_what_the_engine_would_not_do_to_vectors_is_refused_by_name",
            f"{POOL}::test_an_upstream_runs_no_adapters_and_saves_no_snapshots",
        ),
        "adapters that the engine has loaded": (
            f"{ADAPTERS}::test_a_request_names_its_adapter_as_the_engine_does",
            f"{ADAPTERS}::test_only_llama_server_mixes_adapters",
            "tests/e2e/test_upstream_adapters.py"
            "::test_each_adapter_is_a_model_that_the_engine_is_asked_for",
        ),
        **dict.fromkeys(("vLLM", "SGLang", "llama-server"), (ROUTES,)),
        "in text mode": (ROUTES,),
    },
    "Batches": {
        "another request comes": (
            f"{ADMISSION}::test_what_waits_in_an_engine_makes_way_for_others",
            f"{ADMISSION}::test_what_is_cancelled_while_it_leaves_an_engine_does_not_come_back",
        ),
        "the engine refuses them as overload (`--max-num-queued-reqs`)": (
            f"{ADMISSION}::test_an_engine_that_refuses_what_would_wait_in_it_gets_no_more_of_that",
            f"{ADMISSION}::test_an_engine_that_refuses_what_would_wait_in_it_does_not_rest",
        ),
        "they wait in the engine for half of `first_token_timeout_s`": (
            f"{ADMISSION}::test_an_engine_is_not_lost_because_something_waits_in_it_for_long",
        ),
        "embeddings, text mode (unless `batch_ahead` is set)": (
            f"{VECTORS}::test_requests_wait_in_the_order_of_priorities_and_projects",
            f"{POOL}::test_lines_of_batches_wait_in_engines_whose_slots_are_not_set",
        ),
    },
    "Embeddings": {
        "inputs": (
            f"{VECTORS}::test_vectors_of_token_ids_come_in_the_order_of_the_inputs",
            f"{VECTORS}::test_many_inputs_are_asked_for_a_few_at_a_time",
        ),
        "an input beyond the context": (
            f"{VECTORS_E2E}::test_what_the_engine_would_not_do_to_vectors_is_refused_by_name",
        ),
        "vectors": (
            f"{VECTORS}::test_an_answer_that_is_none_is_asked_for_elsewhere",
            "tests/property/inference_svc/upstream/test_embedding_properties.py"
            "::test_vectors_have_the_order_of_the_inputs",
        ),
        "`dimensions`": (f"{VECTORS}::test_vectors_are_truncated_and_then_scaled",),
        "`normalize`": (
            f"{VECTORS_E2E}::test_what_the_engine_would_not_do_to_vectors_is_refused_by_name",
        ),
        "several URLs, queue, priorities, deadlines, overload, keys, limits, usage, traces": (
            f"{VECTORS}::test_what_was_embedded_before_a_loss_is_not_asked_for_again",
            f"{VECTORS}::test_requests_beyond_the_slots_wait_and_a_cancelled_one_frees_its_slot",
            f"{VECTORS}::test_a_deadline_ends_a_request_that_runs",
        ),
        "vector stores": (
            f"{VECTORS_E2E}::test_files_are_embedded_and_found_by_the_engine",
            f"{VECTORS}::test_another_length_under_the_same_name_is_another_model",
        ),
    },
    "Adapters": {
        name: (
            f"{ADAPTERS}::test_a_request_names_its_adapter_as_the_engine_does",
            f"{ADAPTERS}::test_an_adapter_that_is_loaded_later_is_seen_without_a_new_connection",
            *others,
        )
        for name, others in {
            "vLLM": (LOADS,),
            "SGLang": (LOADS,),
            "llama-server": (
                f"{ADAPTERS}::test_an_engine_without_the_setting_applies_its_adapters_itself",
            ),
        }.items()
    },
    "Text mode": {
        "chat in all dialects, streams, reasoning, tools, `tool_choice`, several choices (each is a"
        " request of its own)": (
            f"{TEXT_E2E}::test_what_the_inner_streams_the_outer_delivers",
            f"{TEXT_E2E}::test_other_dialects_answer",
            f"{TEXT_E2E}::test_several_choices_are_answered",
            f"{TEXT_RPC}::test_only_tools_that_may_be_called_are_sent",
            f"{TEXT_RPC}::test_calls_beyond_the_first_are_dropped_where_one_is_allowed",
        ),
        "`temperature`, `top_p`, `frequency_penalty`, `presence_penalty`, `max_tokens`"
        " (`max_completion_tokens` where that is refused), `stop`, `seed` (modulo 2^31),"
        " `reasoning_effort`": (
            f"{TEXT_RPC}::test_what_openai_has_a_field_for_is_sent",
            f"{TEXT_RPC}::test_what_is_unset_is_left_to_the_engine",
            f"{TEXT}::test_a_service_that_knows_only_the_new_name_of_the_limit_gets_that",
        ),
        "`response_format`: JSON Schema (as `strict`) and JSON objects": (
            f"{TEXT_RPC}::test_schemas_are_sent_digit_for_digit",
            f"{TEXT_RPC}::test_any_json_object_is_a_format_of_its_own",
        ),
        "assistants, threads, runs, responses, conversations, batches, keys, queue, fairness,"
        " several URLs, usage, traces": (
            f"{TEXT_E2E}::test_a_run_calls_a_tool_and_answers",
            f"{TEXT_E2E}::test_a_batch_runs_over_the_engine",
            f"{TEXT_E2E}::test_a_conversation_goes_on_over_responses",
            f"{TEXT}::test_requests_beyond_the_concurrency_wait_here",
        ),
        "`logprobs`, `top_logprobs`": (
            f"{TEXT}::test_log_probabilities_are_those_of_an_engine_that_tells_them",
            f"{TEXT}::test_log_probabilities_that_no_engine_tells_are_refused",
            f"{TEXT_E2E}::test_what_the_inner_streams_the_outer_delivers",
        ),
        "pictures": (
            f"{TEXT_RPC}::test_pictures_pass_as_data_urls_with_the_type_of_their_bytes",
            f"{TEXT_RPC}::test_pictures_that_no_engine_takes_are_refused_by_name",
            f"{TEXT_E2E}::test_what_the_inner_streams_the_outer_delivers",
            "tests/unit/inference_svc/engine_client/test_requests.py"
            "::test_pictures_are_held_once_for_all_choices_until_the_last_has_ended",
        ),
        "other sampling fields, grammars, regex, `logit_bias`, token ids,"
        " `thinking_budget_tokens`, chat templates, a last message of the assistant that is to be"
        " continued, sounds, pictures in other messages": (
            f"{TEXT_RPC}::test_pictures_that_no_engine_takes_are_refused_by_name",
            f"{TEXT_RPC}::test_each_option_is_sent_or_refused_or_a_hint",
            f"{TEXT_RPC}::test_what_openai_has_no_field_for_is_refused_by_name",
            f"{TEXT_RPC}::test_templates_and_formats_of_ours_are_refused_by_name",
            f"{TEXT_E2E}::test_what_the_engine_would_not_get_is_refused_by_name",
        ),
        "embeddings": (
            f"{VECTORS_E2E}::test_in_text_mode_vectors_and_counts_are_those_of_the_service",
            f"{VECTORS_E2E}::test_in_text_mode_a_model_that_embeds_does_nothing_else",
            f"{VECTORS}::test_a_service_is_asked_to_embed_only_if_the_settings_say_so",
        ),
        "completions, tokenizing, counting, rendering, reranking": (
            f"{TEXT_E2E}::test_what_needs_token_ids_is_refused",
        ),
        "`enable_thinking`": (f"{TEXT_RPC}::test_what_has_no_effect_is_named",),
    },
    "While an engine is away": {
        "it is not there when Corral starts": (
            f"{E2E}::test_the_message_of_the_start_names_an_engine_that_is_away",
            f"{POOL}::test_an_engine_that_is_away_delays_neither_the_start_nor_other_models",
        ),
        "one of several URLs is lost": (
            f"{UPSTREAM}/test_resumption.py::test_a_text_goes_on_without_repetition_or_gap",
        ),
        "the last URL is lost": (
            f"{UPSTREAM}/test_upstream_faults.py::test_the_loss_of_all_engines_ends_the_connection",
            f"{UPSTREAM}/test_upstream_admission.py"
            "::test_a_request_that_runs_is_finished_though_no_engine_can_be_probed",
            f"{E2E}::test_a_response_in_the_background_outlives_the_engine",
        ),
        "it is overloaded (429, 503, also inside a stream)": (
            f"{UPSTREAM}/test_upstream_faults.py::test_an_engine_tells_when_to_ask_again",
            f"{UPSTREAM}/test_upstream_admission.py"
            "::test_an_engine_rests_longer_each_time_until_it_serves_again",
            f"{UPSTREAM}/test_upstream_admission.py"
            "::test_a_prompt_that_is_refused_is_charged_to_its_project_once",
            "tests/unit/inference_svc/upstream/test_verdict.py"
            "::test_overload_ends_a_request_only_after_minutes",
        ),
        "it answers a request with an error of its own (500)": (
            f"{UPSTREAM}/test_upstream_admission.py"
            "::test_an_engine_that_fails_at_what_another_one_serves_is_set_aside",
        ),
        "it serves another model than before, or refuses the key": (
            f"{UPSTREAM}/test_upstream_faults.py"
            "::test_another_model_under_the_same_name_gets_no_request",
            f"{UPSTREAM}/test_upstream_probes.py"
            "::test_an_engine_with_other_tokens_after_a_restart_gets_no_request",
            f"{UPSTREAM}/test_upstream_probes.py"
            "::test_a_model_fails_with_the_problems_of_all_its_urls",
        ),
        "it sends nonsense, or nothing for `token_timeout_s`": (
            f"{UPSTREAM}/test_upstream_faults.py"
            "::test_a_request_goes_on_after_an_answer_that_is_none",
            f"{UPSTREAM}/test_upstream_faults.py::test_a_silent_engine_is_given_up",
        ),
        "it sends more than was asked": (
            f"{UPSTREAM}/test_upstream_faults.py::test_more_tokens_than_asked_are_cut",
        ),
        "text, reasoning, tool calls without enforced schemas; stop texts, a half-written call or"
        " character, log probabilities": (
            f"{UPSTREAM}/test_resumption.py::test_a_text_goes_on_without_repetition_or_gap",
            f"{UPSTREAM}/test_resumption.py::test_a_stop_text_across_the_seam_ends_the_text",
            f"{UPSTREAM}/test_resumption.py::test_a_reasoning_goes_on_as_a_reasoning",
            f"{UPSTREAM}/test_resumption.py"
            "::test_each_token_has_its_log_probabilities_after_a_loss",
            f"{E2E}::test_a_call_that_was_half_written_goes_on_after_a_loss",
        ),
        "in text mode": (
            f"{TEXT}::test_an_answer_that_is_none_is_asked_for_elsewhere",
            f"{TEXT}::test_what_was_shown_in_part_does_not_begin_again",
            f"{TEXT_E2E}::test_a_kill_of_one_of_two_urls_doubles_nothing",
        ),
        "with a choice, a regular expression, or JSON of the keywords that all engines enforce": (
            f"{UPSTREAM}/test_resumption.py"
            "::test_an_output_in_a_format_goes_on_with_the_grammar_of_its_rest",
            f"{UPSTREAM}/test_resumption.py"
            "::test_a_complete_output_in_a_format_ends_without_another_engine",
            f"{CONTINUATION}::test_each_rest_of_a_document_may_follow_what_is_before_it",
            f"{CONTINUATION}::test_what_follows_makes_a_document_of_the_schema",
            f"{CONTINUATION}::test_each_rest_of_a_match_may_follow_what_is_before_it",
            f"{CONTINUATION}::test_what_follows_makes_a_match",
        ),
        "with another enforced format, a grammar (Lark, GBNF), `strict` or required tools": (
            f"{UPSTREAM}/test_resumption.py"
            "::test_a_constrained_output_begins_again_if_nothing_was_shown",
            f"{UPSTREAM}/test_resumption.py"
            "::test_a_constrained_output_that_was_shown_ends_with_its_engine",
            f"{UPSTREAM}/test_resumption.py"
            "::test_an_output_whose_rest_is_no_grammar_ends_with_its_engine",
            f"{CONTINUATION}::test_a_rest_that_cannot_be_written_is_none",
        ),
        "with `seed` and a temperature above 0": (
            f"{UPSTREAM}/test_resumption.py"
            "::test_a_sampled_output_goes_on_with_the_seed_of_its_request",
        ),
        "several choices": (f"{UPSTREAM}/test_resumption.py::test_each_choice_goes_on_by_itself",),
        "embeddings": (f"{VECTORS}::test_what_was_embedded_before_a_loss_is_not_asked_for_again",),
        "turn of a run or a background response with a format that goes on": (
            f"{UPSTREAM}/test_resumption.py::test_an_output_in_a_format_is_resumed",
            f"{E2E}::test_a_background_response_with_a_format_goes_on_after_a_loss",
        ),
        "turn of a run or a background response in text mode, or with another constraint, after"
        " it has written something": (
            f"{UPSTREAM}/test_resumption.py::test_a_constrained_output_cannot_be_resumed",
            f"{E2E}::test_a_background_response_whose_rest_is_no_grammar_fails_if_it_had_begun",
        ),
        "that has lost three engines": (
            f"{UPSTREAM}/test_resumption.py::test_a_request_that_loses_three_engines_ends",
            f"{UPSTREAM}/test_upstream_faults.py"
            "::test_a_request_that_three_engines_answer_with_lies_fails",
        ),
        "that engines have answered twice with an error of their own": (
            f"{UPSTREAM}/test_resumption.py::test_a_request_that_engines_fail_twice_ends",
        ),
    },
    "Behind a router of others": {
        "`input_ids`, `text`, `sampling_params`": (
            f"{ROUTER}/test_vllm_requests.py::test_a_field_of_the_request_is_converted",
            f"{ROUTER}/test_vllm_requests.py::test_a_sampling_parameter_is_honoured_or_refused",
            f"{ROUTER}/test_vllm_requests.py::test_unset_parameters_have_the_defaults_of_vllm",
            f"{ROUTER}/test_vllm_requests.py::test_limits_are_named_in_the_words_of_the_contract",
            f"{ROUTER_E2E}::test_the_tokens_are_those_of_the_other_service",
        ),
        "`json_schema`, `regex`, `json_object`, `choice`, `grammar`": (
            f"{ROUTER}/test_vllm_requests.py::test_a_grammar_with_rules_of_gbnf_is_one",
            f"{ROUTER_E2E}::test_a_constraint_holds_from_the_first_token",
        ),
        "`stop`, `skip_special_tokens`": (
            f"{ROUTER}/test_vllm_responses.py::test_the_end_of_a_choice_names_what_was_asked_for",
        ),
        "`spaces_between_special_tokens`, `include_stop_str_in_output`, `original_text`": (
            f"{ROUTER}/test_vllm_requests.py::test_no_field_of_the_contract_is_forgotten",
        ),
        "`structural_tag`, `kv_transfer_params`, `mm_inputs`, `media_refs`, a `data_parallel_rank`"
        " but 0": (f"{ROUTER}/test_vllm_requests.py::test_what_is_not_served_is_refused_by_name",),
        "`Abort`": (
            f"{ROUTER_E2E}::test_an_abort_ends_a_request_of_the_same_project",
            f"{ROUTER}/test_vllm_responses.py"
            "::test_an_abort_ends_the_choices_that_have_not_finished",
        ),
        "`HealthCheck`": (
            f"{ROUTER}/test_vllm_service.py::test_it_is_healthy_while_requests_are_served",
        ),
        "`GetModelInfo`": (f"{ROUTER_E2E}::test_the_model_and_the_server_are_described",),
        "`GetServerInfo`, `GetLoads`": (
            f"{ROUTER_E2E}::test_the_model_and_the_server_are_described",
        ),
        "`FlushCache`, `StartProfile`, `StopProfile`, `SubscribeKvEvents`": (
            f"{ROUTER_E2E}::test_methods_that_are_not_served_are_refused_by_name",
        ),
    },
}
"""By section and first cell."""


def test_every_table_of_the_page_of_engines_is_here() -> None:
    sections = re.findall(r"^## (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert [each for each in sections if list(rows_of(each))] == list(TESTS)


def rows_of(section: str) -> Iterator[str]:
    """The first cells of the tables of a section, without their heads."""
    text = PAGE.read_text(encoding="utf-8").partition(f"## {section}\n")[2].partition("\n## ")[0]
    for table in re.findall(r"^\|.*\n\|-.*\n((?:\|.*\n)+)", text, flags=re.MULTILINE):
        yield from (line.split("|")[1].strip() for line in table.splitlines())


def functions_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in tree.body if isinstance(node, functions)}


def test_every_row_of_the_page_of_engines_has_tests() -> None:
    for section, rows in TESTS.items():
        assert list(rows_of(section)) == list(rows)
        assert [row for row, tests in rows.items() if not tests] == []


def test_every_test_that_a_row_names_exists() -> None:
    named = {test for rows in TESTS.values() for tests in rows.values() for test in tests}
    missing = [
        test
        for test in sorted(named)
        if test.partition("::")[2] not in functions_of(ROOT / test.partition("::")[0])
    ]

    assert missing == []
