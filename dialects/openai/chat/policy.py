"""Parameters of OpenAI, llama-server, vLLM and Ollama that no generation implements here.

A parameter is refused if the answer would differ without it, else ignored.
"""

from typing import Final

from dialects.shared.parameters import Ignored, Policy, Refused, ignored

_CACHE: Final = "every prefix is cached, as long as there is memory"
NOT_TEXT: Final = "generations have text only"

CACHE_CONTROL: Final = ignored("cache_control", _CACHE)
"""A mark of Anthropic's API, which clients also put into parts, messages and tools of others."""

FUNCTIONS: Final[Policy] = {
    **CACHE_CONTROL,
    "async": Refused("calls are answered in the order of the conversation", (False,)),
    "defer_loading": Ignored("the model reads all tools", (False,)),
    "output_schema": Ignored("outputs of functions are not checked"),
    "allowed_callers": Refused("only the model calls tools", ([], ["direct"])),
}
"""Of functions and custom tools."""

LABELS: Final = ignored(
    "client_metadata metadata request_id safety_identifier session_id user",
    "it is a label of the caller's, and is not stored",
)

GENERATION: Final[Policy] = {
    **CACHE_CONTROL,
    **LABELS,
    **ignored("prompt_cache_options prompt_cache_retention", _CACHE),
    **ignored(
        "guided_decoding_backend id_slot keep_alive main_gpu n_cache_reuse n_keep num_batch "
        "num_ctx num_gpu num_keep num_thread ttl use_mlock use_mmap",
        "the operator decides it",
    ),
    "guided_whitespace_pattern": Refused("use 'guided_regex' or 'guided_grammar'"),
    "priority": Ignored("the priority belongs to the API key"),
    **ignored("return_progress return_tokens verbose", "there is no such output", (False,)),
    "safe_prompt": Refused("put instructions into 'messages'", (False,)),
    "service_tier": Ignored("there is one tier", ("auto", "default")),
    "timings_per_token": Ignored("timings are sent at the end", (False,)),
    "add_special_tokens": Refused("prompts are tokenized as the model's template requires"),
    "bad_words": Refused("use 'logit_bias'", ([],)),
    "length_penalty": Refused("there is no beam search", (1,)),
    "n_indent": Refused("use 'grammar'", (0,)),
    "n_probs": Refused("use 'logprobs'", (0,)),
    "num_predict": Refused("use 'max_tokens'"),
    "options": Refused(
        "options of Ollama are parameters of their own here, such as 'top_k'", ({},)
    ),
    "post_sampling_probs": Refused("use 'logprobs'", (False,)),
    "prompt_logprobs": Refused("only chat and text completions have it"),
    "return_token_ids": Refused("only chat and text completions have it", (False,)),
    "spaces_between_special_tokens": Refused("text is what the tokens say", (True,)),
    "stop_sequences": Refused("use 'stop'"),
    "system": Refused("use 'messages'"),
    "t_max_predict_ms": Refused("use 'max_tokens', or cancel the request", (0,)),
    "truncate_prompt_tokens": Refused("only text completions have it"),
    "use_beam_search": Refused("there is no beam search", (False,)),
}
