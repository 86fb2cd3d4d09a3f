"""Parses texts by SGLang's detectors of tool calls; a process of its own, with stand-ins.

Argument: the folder with `sglang`. Reads `[{"detector": "module.Class", "text": …, "tools": {name:
schema}}, …]` from its input; writes `[[content, [[name, arguments], …]] or null, …]`, null where
the detector raises. What the detectors import of SGLang's server and of packages that are not here
is a stand-in; parsing a whole text does not need it.
"""

import importlib
import json
import sys
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import MagicMock

STANDS_IN: Final = """
msgspec openai_harmony partial_json_parser partial_json_parser.core
partial_json_parser.core.exceptions partial_json_parser.core.options
sglang.srt.entrypoints sglang.srt.entrypoints.openai sglang.srt.entrypoints.openai.protocol
sglang.srt.environ sglang.srt.parser sglang.srt.parser.response_template
sglang.srt.parser.harmony_parser transformers xgrammar xgrammar.structural_tag
"""


class Unset:
    """SGLang's settings: none is set."""

    def __getattr__(self, _: str) -> Any:
        return SimpleNamespace(get=lambda: None)


def parse(detector: str, text: str, tools: dict[str, str]) -> Any:
    module, _, name = detector.partition(".")
    cls = getattr(importlib.import_module(f"sglang.srt.function_call.{module}"), name)
    offered = [
        SimpleNamespace(
            type="function",
            function=SimpleNamespace(name=tool, parameters=json.loads(schema or "{}")),
        )
        for tool, schema in tools.items()
    ]
    try:
        result = cls().detect_and_parse(text, offered)
    except (AttributeError, LookupError, TypeError, ValueError):
        return None
    return result.normal_text or "", [[call.name, call.parameters] for call in result.calls]


sys.path.insert(0, sys.argv[1])
for stand_in in STANDS_IN.split():
    sys.modules[stand_in] = MagicMock()
sys.modules["sglang.srt.environ"].envs = Unset()  # type: ignore[attr-defined]  # of a stand-in
sys.modules["sglang.srt.entrypoints.openai.protocol"].Tool = object  # type: ignore[attr-defined]
json.dump([parse(**job) for job in json.load(sys.stdin)], sys.stdout)
