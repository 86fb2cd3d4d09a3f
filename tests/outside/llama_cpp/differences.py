"""Where Corral renders something else than llama-server, and why, grouped by mechanism."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from tests.outside.llama_cpp.conversations import CONVERSATIONS


class Difference(NamedTuple):
    """`cases` are the conversations, separated by commas, by the beginnings of templates' names.

    `as_transformers`: transformers renders the same as Corral.
    """

    reason: str
    as_transformers: bool
    cases: dict[str, str]


_WITH_TOOLS: Final = ", ".join(name for name, body in CONVERSATIONS.items() if "tools" in body)
_WITH_CALLS: Final = "call, call in turns, parallel calls, reasoning and call"
DIFFERENCES: Final = (
    Difference(
        "A request that does not say whether to think leaves it to the template; llama-server says "
        "enable_thinking.",
        True,
        dict.fromkeys(
            (
                *("Bielik", "CohereForAI-c4ai-command-r7b", "Qwen-QwQ", "Reka"),
                *("deepseek-ai-DeepSeek-R1-Distill-Qwen", "deepseek-ai-DeepSeek-V"),
                *("google-gemma-4", "llama-cpp-rwkv", "openbmb", "poolside-Laguna-XS"),
            ),
            "user",
        ),
    ),
    Difference(
        "The template decides which reasoning of earlier turns is kept; llama-server keeps it.",
        True,
        {
            **dict.fromkeys(("GLM-4.7", "LFM2.5-8B", "NVIDIA-Nemotron-3"), "reasoning"),
            "deepseek-ai-DeepSeek-V4": "turns, reasoning",
        },
    ),
    Difference(
        "A continued turn is written by the template; llama-server writes markers of reasoning and "
        "the text behind the prompt of a new turn.",
        True,
        dict.fromkeys(
            (
                *(
                    "Apriel-1.6",
                    "Bielik",
                    "ByteDance",
                    "Cohere2MoE",
                    "CohereForAI-c4ai-command-r7b",
                ),
                *("GLM-4.7", "HuggingFaceTB", "Kimi-K2-Instruct", "Kimi-K3", "LFM2", "MiniMax-M2"),
                *("MiniMax-M3", "NVIDIA", "Qwen-QwQ", "Reka", "Spark", "StepFun", "google-gemma-4"),
                *(
                    "deepseek-ai-DeepSeek-R1",
                    "deepseek-ai-DeepSeek-V3.2",
                    "ibm-granite-granite-3.3",
                ),
                *("llama-cpp", "microsoft", "mistralai", "moonshotai", "muse", "openai", "openbmb"),
                *("poolside", "unsloth-mistral", "upstage"),
            ),
            "continue",
        ),
    ),
    Difference(
        "As above; transformers refuses it without tools.",
        False,
        {
            "CohereForAI-c4ai-command-r-plus": "continue",
        },
    ),
    Difference(
        "The template cannot show tools, or not in OpenAI's form: they are described in the system "
        "message. The references drop them.",
        False,
        {
            **dict.fromkeys(
                (
                    *("CohereForAI-c4ai-command-r-plus", "HuggingFaceTB", "llama-cpp-rwkv"),
                    *("deepseek-ai-DeepSeek-R1", "deepseek-ai-DeepSeek-V3.1", "microsoft"),
                    "google-gemma-2",
                ),
                _WITH_TOOLS,
            ),
            "fireworks": _WITH_TOOLS,
        },
    ),
    Difference(
        "The template does not show calls: they are written as text. The references drop them.",
        False,
        dict.fromkeys(("LFM2-", "LFM2.5-Instruct", "ibm-granite-granite-3.3"), _WITH_CALLS),
    ),
    Difference(
        "Calls of one message of which the template takes one are messages of their own. The "
        "references are refused, or lose all but the first.",
        False,
        dict.fromkeys(("GigaChat3", "meta-llama", "openai-gpt-oss"), "parallel calls"),
    ),
    Difference(
        "A system message is merged into the user's with an empty line, as Gemma 3 and Mistral do; "
        "llama-server writes a line break, transformers refuses it.",
        False,
        {"google-gemma-2": "turns, developer, parts, no thinking, continue"},
    ),
    Difference(
        "The template writes the text parts of a user; llama-server joins them by line breaks.",
        True,
        dict.fromkeys(("LFM2.5-8B", "StepFun", "mistralai-Ministral"), "parts"),
    ),
    Difference(
        "A system message of parts is a text; the references write Python's repr of them.",
        False,
        {"google-gemma-4": "parts"},
    ),
    Difference(
        "White space around the text of messages is kept; llama-server removes it for this "
        "template.",
        True,
        {"StepFun": "turns"},
    ),
    Difference(
        "Thinking is disabled under the template's name for it, here an effort of none.",
        False,
        {"Cohere2MoE": "no thinking"},
    ),
    Difference(
        "A result has the name of its tool, as the model's documentation asks, also if the client "
        "does not send it.",
        False,
        {"Kimi-K2": "call in turns"},
    ),
    Difference(
        "A text beside a call is kept; llama-server drops it where the answer follows in its turn.",
        False,
        {"google-gemma-4-31B-it-interleaved": "call in turns"},
    ),
    Difference(
        "Arguments that are objects are written; llama-server drops them.",
        True,
        {"openbmb": "parallel calls"},
    ),
    Difference(
        "The answer beside reasoning is written; llama-server drops it.",
        True,
        {"unsloth-mistral": "reasoning"},
    ),
    Difference(
        "A developer message keeps its role, which the template has.",
        True,
        {"deepseek-ai-DeepSeek-V4": "developer"},
    ),
)


def cases_of(difference: Difference, templates: list[str]) -> Iterator[tuple[str, str]]:
    for beginning, names in difference.cases.items():
        for template in templates:
            if template.startswith(beginning):
                yield from ((template, name) for name in names.split(", "))
