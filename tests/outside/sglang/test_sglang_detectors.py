"""SGLang's detectors of tool calls beside Corral's parser, on the same texts: a second opinion.

The texts are those of llama.cpp's cases and of vLLM's tests in the formats that both know. Outer
white space and that in JSON is not compared.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from inference_svc.chat.json_values import json_or_none
from inference_svc.chat.parsers.formats import ToolCallFormat, TurnFormat
from inference_svc.chat.parsers.offered_tools import OfferedTools
from inference_svc.chat.parsers.parser import TurnParser
from tests.outside.formats import detected_format
from tests.outside.llama_cpp.chat_cases import read_cases
from tests.outside.llama_cpp.results import check_results
from tests.outside.llama_cpp.source import llama_cpp_source
from tests.outside.packages import Package, package_folder
from tests.outside.vllm.vllm_tests import run_vllm_tests
from tests.support.turns import Parsed, feed, finish, merge_deltas

pytestmark = pytest.mark.timeout(240)  # the first run downloads the package
PROGRAM: Final = Path(__file__).with_name("sglang_program.py")
SGLANG: Final = Package(
    "sglang",
    "0.5.23",
    "00b3cd5b265ac76c64185fbb6b95424f324ddd9f428d0306b77bc9db9d859937",
    re.compile(r"sglang/srt/function_call/.*\.py"),
    wheel=(
        *("--only-binary", "sglang", "--python-version", "3.11", "--abi", "cp311"),
        *("--platform", "manylinux_2_34_x86_64"),
    ),
)
Calls = ToolCallFormat
DETECTORS: Final = {
    Calls.APERTUS: "apertus2509_detector.Apertus2509Detector",
    Calls.COHERE: "cohere_command4_detector.CohereCommand4Detector",
    Calls.DEEPSEEK: "deepseekv31_detector.DeepSeekV31Detector",
    Calls.DEEPSEEK_V32: "deepseekv32_detector.DeepSeekV32Detector",
    Calls.GEMMA: "gemma4_detector.Gemma4Detector",
    Calls.GLM: "glm47_moe_detector.Glm47MoeDetector",
    Calls.HERMES: "hermes_detector.HermesDetector",
    Calls.HUNYUAN: "hunyuan_detector.HunyuanDetector",
    Calls.KIMI: "kimik2_detector.KimiK2Detector",
    Calls.LLAMA: "llama32_detector.Llama32Detector",
    Calls.MINICPM: "minicpm5_detector.MiniCPM5Detector",
    Calls.MINIMAX: "minimax_m2.MinimaxM2Detector",
    Calls.MINIMAX_M3: "minimax_m3.MinimaxM3Detector",
    Calls.MISTRAL: "mistral_detector.MistralDetector",
    Calls.MUSE: "muse_glimmer_detector.MuseGlimmerDetector",
    Calls.PYTHONIC: "pythonic_detector.PythonicDetector",
    Calls.QWEN_CODER: "qwen3_coder_detector.Qwen3CoderDetector",
}
VARIANTS: Final = {
    r"function<｜tool▁sep｜>": "deepseekv3_detector.DeepSeekV3Detector",
    r"｜DSML｜tool_calls": "deepseekv4_detector.DeepSeekV4Detector",
    r"<\|tool_call_start\|>": "lfm2_detector.Lfm2Detector",
    r"<tool_call>\w+\n<arg_key>": "glm4_moe_detector.Glm4MoeDetector",
}
"""The detectors of texts in which these are found."""


class AnyTools(OfferedTools):
    """Tools of every name."""

    def __bool__(self) -> bool:
        return True

    def __contains__(self, name: object) -> bool:
        return bool(name)

    def has_name_with(self, beginning: str) -> bool:
        return True


class Text(NamedTuple):
    """A text, and how it is parsed; without tools, those that are called are offered."""

    turn_format: TurnFormat
    text: str
    tools: dict[str, str]

    @property
    def detector(self) -> str:
        """SGLang's detector of the format."""
        variants = (name for form, name in VARIANTS.items() if re.search(form, self.text))
        return next(variants, DETECTORS[self.turn_format.tool_calls])


class Verdict(NamedTuple):
    """Both results."""

    text: str
    corral: Parsed
    ends_in_call: bool
    sglang: Parsed

    @property
    def has_same_calls(self) -> bool:
        return _values(self.corral) == _values(self.sglang)

    @property
    def is_same(self) -> bool:
        return self.has_same_calls and _words(self.corral.content) == _words(self.sglang.content)


def _values(parsed: Parsed) -> list[Any]:
    return [(name, json_or_none(arguments) or arguments) for name, arguments in parsed.calls]


def _words(text: str) -> str:
    return "".join(text.split())


def _typed(parsed: Parsed) -> list[Any]:
    """The calls, of which also members that are JSON in a text are parsed."""
    return [
        (name, {key: _member(item) for key, item in value.items()})
        for name, value in _values(parsed)
        if isinstance(value, dict)
    ]


def _member(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return None if value == "null" else json_or_none(value) or value


def _lacks_closing(verdict: Verdict) -> bool:
    own, other = _words(verdict.corral.content), _words(verdict.sglang.content)
    rest = other.removeprefix(own)
    return verdict.has_same_calls and re.fullmatch(r"(<[^<>]+>)+", rest) is not None


def _has(pattern: str) -> Callable[[Verdict], bool]:
    return lambda verdict: re.search(pattern, verdict.text) is not None


DIFFERENCES: Final[dict[str, Callable[[Verdict], bool]]] = {
    "A call that is cut off, or has broken arguments, is one; SGLang has none or another one.": (
        lambda each: (
            each.ends_in_call
            or any(json_or_none(arguments) is None for _, arguments in each.corral.calls)
        )
    ),
    "Text between and behind calls is content, and so is a section without a call.": (
        lambda each: (
            each.has_same_calls
            and len(_words(each.corral.content)) > len(_words(each.sglang.content))
        )
    ),
    "A value whose type no schema tells has its JSON type; SGLang leaves it a text.": (
        lambda each: [] != _typed(each.corral) == _typed(each.sglang)
    ),
    "Gemma's thoughts and their markers are no content; SGLang removes them elsewhere.": (
        lambda each: each.has_same_calls and _has(r"<\|?channel\|?>")(each)
    ),
    "The markers are also those of OLMo 3, Seed OSS, FunctionGemma, older Mistral and Llama.": _has(
        r"<function_calls>|<seed:|<start_function|\[CALL_ID\]|\[TOOL_CALLS\]\[|^<function=\w+>\{"
    ),
    "A call is one without the marker before it, and with less white space.": _has(
        r"(?s)^((?!<tool_call>).)*<function=|<\|tool_call>:|^<\|tool_call_begin|\}```|\w\n</tool_call>"
    ),
    "A closing marker or bracket may be missing.": _has(
        r"(?s)^<(\|tools_prefix\||tool_call)>.*[]}]$"
    ),
    "A closing marker at the end of a turn without a call is no content.": _lacks_closing,
    "Names and arguments are as the model wrote them, also doubled or unknown ones.": _has(
        r"functions\.invalid\.0|\"city\">.*\"city\">|'phone_number'|CDATA|<function=\w+\n|^\{\"para|duplicate_demo"
    ),
}
"""Why Corral's result is another one on purpose: the first reason that holds for a text."""


def _texts() -> list[Text]:
    """Without those of thoughts, which SGLang reads elsewhere."""
    found = []
    source = llama_cpp_source()
    for case in read_cases((source / "tests" / "test-chat.cpp").read_text())[0]:
        template = (source / "models" / "templates" / case.template).read_text()
        tools = {name: schema for name, _, schema in case.tools}
        if tools and not case.expected.reasoning and "think>" not in case.text:
            turn_format = TurnFormat(tool_calls=detected_format(template).tool_calls)
            found.append(Text(turn_format, case.text, tools))
    for name, text in run_vllm_tests()["texts"]:
        found.append(Text(TurnFormat(tool_calls=ToolCallFormat(name)), text, {}))
    unique = {(each.turn_format, each.text): each for each in found}
    return [each for each in unique.values() if each.turn_format.tool_calls in DETECTORS]


@pytest.fixture(scope="module")
def verdicts() -> list[Verdict]:
    """Of all texts that SGLang's detectors can read."""
    texts, parsed, jobs = _texts(), [], []
    for each in texts:
        tools = OfferedTools(each.tools) if each.tools else AnyTools({})
        parser = TurnParser(each.turn_format, tools=tools)
        turn = merge_deltas([feed(parser, each.text), finish(parser)])
        parsed.append((turn, parser.ends_in_call))
        offered = each.tools or {name: "" for name, _ in turn.calls} or {"get_weather": ""}
        jobs.append({"detector": each.detector, "text": each.text, "tools": offered})
    ended = subprocess.run(
        [sys.executable, PROGRAM, package_folder(SGLANG)],
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return [
        Verdict(each.text, turn, ends_in_call, Parsed(found[0], "", tuple(map(tuple, found[1]))))
        for each, (turn, ends_in_call), found in zip(
            texts, parsed, json.loads(ended.stdout), strict=True
        )
        if found is not None
    ]


def test_texts_are_parsed_as_by_sglang(verdicts: list[Verdict]) -> None:
    """Except for reasons, each of which some text needs."""
    others = [each for each in verdicts if not each.is_same]
    reasons = [
        next((reason for reason, holds in DIFFERENCES.items() if holds(each)), each)
        for each in others
    ]

    assert [each for each in reasons if isinstance(each, Verdict)] == []
    assert set(reasons) == DIFFERENCES.keys()


def test_results_are_published(verdicts: list[Verdict]) -> None:
    """The numbers of docs/reference/models.md."""
    same = sum(each.is_same for each in verdicts)
    summary = (
        f"SGLang's detectors of calls: {same} of {len(verdicts)} texts as Corral, "
        f"{len(verdicts) - same} otherwise for {len(DIFFERENCES)} documented reasons"
    )
    check_results("sglang_detectors", {"summary": summary, "columns": [], "rows": {}})
