"""vLLM's own tests of its parsers, on Corral's parser (`vllm_program.py`): a second opinion.

Formats are found by the templates of models, as in the service. White space around texts and in
JSON is not compared, and a test is not counted that ends where it needs what is vLLM's own.
"""

import re
from typing import Any, Final

import pytest

from tests.outside.llama_cpp.results import check_results
from tests.outside.vllm.vllm_tests import run_vllm_tests

pytestmark = pytest.mark.timeout(240)  # the first run downloads the package
DIFFERENCES: Final = {
    "Text between and behind calls is content; vLLM drops it.": """
        deepseekv31_tool:test_extract_tool_calls_with_multiple_tools
        hunyuan_a13b_tool:test_hunyuan_a13b_tool_parser_extract[<tool_calls>
        kimi_k2_tool:test_content_after_tool_section
        minicpm5xml_tool:test_multiple_calls_interleaved_text
        minicpm5xml_tool:test_single_call_with_surrounding_text
        step3p5_tool:test_extract_tool_calls_non_streaming_mixed_content_and_multiple_tool_calls""",
    "Names and arguments are as the model wrote them, also unknown ones; vLLM repairs some.": """
        deepseekv32_tool:test_arguments_wrapper_repaired
        deepseekv32_tool:test_input_wrapper_repaired
        deepseekv32_tool:test_number_param$
        deepseekv4_tool:test_extract_tool_calls_arguments_wrapper
        minicpm5xml_tool:test_alias_
        minicpm5xml_tool:test_arguments_wrapped_arguments
        minicpm5xml_tool:test_case_sensitive_param_name_invalid
        minicpm5xml_tool:test_duplicate_param_names_invalid
        minicpm5xml_tool:test_extra_arguments_
        minicpm5xml_tool:test_properties_wrapped_arguments
        minicpm5xml_tool:test_unknown_tool_block_preserved
        minicpm5xml_tool:test_wrapped_arguments_still_validate_schema
        minicpm5xml_tool:test_zero_arg_tool_ignores_extra_arguments
        minimax_m3_tool:test_non_streaming_nested_tool_call""",
    "A call that is cut off or has broken arguments is a call, with them as they are.": """
        gemma4_tool:test_incomplete_tool_call
        hermes_tool:test_hermes_parser_non_streaming_tool_call_invalid_json
        llama3_json_tool:test_extract_tool_calls_invalid_json
        minicpm5xml_tool:test_incomplete_missing_function_end""",
    "A call without arguments may leave them out.": """
        llama3_json_tool:test_extract_tool_calls_missing_parameters_and_arguments_key""",
    "A thought ends where a whole call follows, not where a marker does.": """
        kimi_k2_reasoning:test_extract_reasoning_tool_section_ends_reasoning""",
    "A head of a call without arguments is content.": """
        gemma4_tool:test_malformed_no_brace_bounded
        gemma4_tool:test_malformed_then_well_formed
        gemma4_tool:test_bare_malformed_then_well_formed
        gemma4_tool:test_three_mixed_calls""",
    "Llama and xLAM call at the beginning of a turn or after their own tag, not inside prose.": """
        llama3_json_tool:test_extract_tool_calls_simple
        llama3_json_tool:test_extract_tool_calls_multiple_json_with_surrounding_text
        xlam_tool:test_extract_tool_calls[single_tool_with_tool_calls_tag]""",
    "A value without quotes and without a type in the schema has its JSON type.": """
        minimax_m2_tool:test_multiple_params
        minimax_m2_tool:test_header_and_params_in_separate_chunks""",
    "DeepSeek V3.2 and V4 are one format: both names of the section are read.": """
        deepseekv4_tool:test_function_calls_wrapper_is_not_recognized""",
    "An id is the model's if its template would render it, else one is generated.": """
        kimi_k2_tool:test_extract_tool_calls[no_functions_prefix]
        kimi_k2_tool:test_invalid_funcall_id_skipped""",
    "White space is held back until text follows, and dropped around calls.": """
        apertus_tool:test_mtp_streaming_massive_chunk
        granite4_tool:test_tool_call_parser_complex
        hermes_tool:test_hermes_parser_streaming_just_forward_text
        minimax_m2_tool:test_content_before_tool_call
        minimax_m3_tool:test_streaming_nested_tool_call""",
    "One piece of text may have two calls, which are one delta.": """
        granite_tool:test_parallel_tool_calls[True]""",
    "Tokens are decoded before they are parsed.": """
        minicpm5xml_tool:test_collapsed_
        minicpm5xml_tool:test_extract_tool_calls_streaming_collapsed_tags_weather
        minicpm5xml_tool:test_extract_tool_calls_streaming_tokenizer_space_marker
        minicpm5xml_tool:test_thinking_only_sentencepiece_normalized_in_content
        minicpm5xml_tool:test_tokenizer_space_marker""",
    "Gemma's channel of reasoning has the name thought; other text is content.": """
        gemma4_reasoning:test_gemma4_reasoning[invalid_simple]
        gemma4_reasoning:test_gemma4_reasoning[invalid_complete]
        gemma4_reasoning:test_gemma4_reasoning[no_content]
        gemma4_reasoning:test_gemma4_reasoning[reasoning
        gemma4_reasoning:test_gemma4_reasoning[complete_reasoning
        gemma4_reasoning:test_gemma4_reasoning[multiple_lines
        gemma4_reasoning:test_gemma4_reasoning[no_end
        gemma4_reasoning:test_gemma4_reasoning[new_line
        gemma4_reasoning:test_gemma4_reasoning[thought_prefix_diverge""",
    "Whether the prompt opens a thought is known from the prompt, not from variables.": """
        glm4_moe_reasoning:test_glm53_template_forces_reasoning_streaming
        holo2_reasoning:test_reasoning[thinking_disabled_with_close_tag]""",
    "Reasoning of no text or of white space is none.": """
        deepseekr1_reasoning:test_reasoning[shortest_streaming]
        deepseekr1_reasoning:test_reasoning[shortest_with_think]
        deepseekr1_reasoning:test_reasoning[empty]
        olmo3_reasoning:test_reasoning[no_reasoning_with_newline""",
    "One parser reads reasoning and calls: a call behind a thought is not content.": """
        gemma4_reasoning:test_gemma4_reasoning[tool_call_started
        qwen3_reasoning:test_reasoning[Qwen/Qwen3-0.6B-tool_call_no_think_end_stream]
        qwen3_reasoning:test_reasoning[Qwen/Qwen3-0.6B-tool_call_with_think_no_end_stream]
        qwen3_reasoning:test_reasoning[Qwen/Qwen3.5-397B-A17B-tool_call_no_think_end_stream]
        qwen3_reasoning:test_reasoning[Qwen/Qwen3.5-397B-A17B-tool_call_with_think_no_end_stream]
        qwen3_reasoning:test_reasoning[Qwen/Qwen3-4B-Thinking-2507-tool_call_no_think_end_stream]
        qwen3_reasoning:test_reasoning[Qwen/Qwen3-4B-Thinking-2507-tool_call_with_think_no_end_stream]
        qwen3_reasoning:test_reasoning_streaming_multi_token_deltas[Qwen/Qwen3-0.6B-tool_call_imp
        qwen3_reasoning:test_reasoning_streaming_multi_token_deltas[Qwen/Qwen3.5-397B-A17B-tool_call_imp
        qwen3_reasoning:test_reasoning_streaming_multi_token_deltas[Qwen/Qwen3-4B-Thinking-2507-tool_call_imp
        xlam_tool:test_extract_tool_calls[single_tool_with_think_tag]""",
    "Asks about token ids or vLLM's own state.": """
        gemma4_reasoning:test_gemma4_adjust_request
        gemma4_reasoning:test_gemma4_new_turn_reasoning_end_matches_enable_thinking
        holo2_reasoning:test_holo2_supports_structured_output
        lfm2_tool:test_adjust_request_disables_skip_special_tokens
        minicpm5xml_tool:test_adjust_request_skip_special_tokens
        minimax_m3_reasoning:test_streaming_split_marker_text_drives_end_state
        minimax_m3_reasoning:test_streaming_split_end_marker_content_ids_are_stripped
        minimax_m3_reasoning:test_token_id_helpers
        step3p5_reasoning:test_reasoning[empty
        xlam_tool:test_streaming_with_list_structure""",
}
"""Why Corral is another one on purpose, and in which tests: the beginnings of file and name."""


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return run_vllm_tests("--splits")


def _name(test: str) -> str:
    file, _, name = test.partition("::")
    file = re.sub(r".*/test_(\w+)_parser\.py", r"\1", file)
    return f"{file}:{re.sub(r'^Test[A-Za-z0-9]+::', '', name)}$"


def test_vllm_tests_pass(report: dict[str, Any]) -> None:
    """Except those that the table explains, which all fail."""
    failing = {_name(test): why for test, why in report["outcomes"].items() if why}
    beginnings = [each for names in DIFFERENCES.values() for each in names.split()]
    passing = {_name(test) for test, why in report["outcomes"].items() if not why}

    unexplained = {n: why for n, why in failing.items() if not n.startswith((*beginnings,))}
    assert unexplained == {}
    assert [each for each in beginnings if not any(n.startswith(each) for n in failing)] == []
    assert sorted(name for name in passing if name.startswith((*beginnings,))) == []


def test_texts_of_vllm_tests_may_be_split_at_any_place(report: dict[str, Any]) -> None:
    """The result is the same."""
    assert report["differing_splits"] == []


def test_results_are_published(report: dict[str, Any]) -> None:
    """The numbers of docs/reference/models.md."""
    outcomes = report["outcomes"].values()
    num_passing = sum(not why for why in outcomes)
    summary = (
        f"vLLM's tests of parsers: {num_passing} of {len(outcomes)} pass on Corral's parser, "
        f"{len(outcomes) - num_passing} do not for {len(DIFFERENCES)} documented reasons; "
        f"{report['num_texts']} texts, the same at {report['num_splits']:,} splits"
    )
    check_results("vllm_tests", {"summary": summary, "columns": [], "rows": {}})
