"""Runs vLLM's tests of its parsers on Corral's parser. A process of its own: it has stand-ins.

Arguments: the folder with `tests` and `vllm`, a file for the report, the formats of the models of
tests as JSON, and `--splits`. vLLM is not imported: its modules are stand-ins with plain records
for its protocol and with the constants of its source. The report has the reason of a failure, or an
empty text, by test, and of all texts that tests parse the number of places to split them at and
those where the result is another one.
"""

import ast
import importlib
import importlib.abc
import importlib.machinery
import itertools
import json
import os
import re
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import pytest

from inference_svc.chat.json_values import json_or_none
from inference_svc.chat.parsers.formats import ReasoningFormat as Thought
from inference_svc.chat.parsers.formats import ToolCallFormat as Calls
from inference_svc.chat.parsers.formats import TurnFormat
from inference_svc.chat.parsers.offered_tools import OfferedTools
from inference_svc.chat.parsers.parser import TurnParser
from inference_svc.chat.parsers.turn import Markers, TurnDelta

SOURCE: Final = Path(sys.argv[1])
SPLITS: Final = "--splits" in sys.argv


def _formats(kind: str) -> dict[str, TurnFormat]:
    return {
        name: TurnFormat(
            Thought(each["reasoning"]),
            Calls(each["tool_calls"]),
            each["starts_in_reasoning"],
            Markers(*each["answer"]),
        )
        for name, each in json.loads(sys.argv[3])[kind].items()
    }


CALLS: Final = _formats("calls")
THOUGHTS: Final = _formats("thoughts")
STANDS_IN: Final = (
    "vllm",
    "transformers",
    "partial_json_parser",
    "xgrammar",
    "regex",
    "openai",
    "openai_harmony",
)


class AnyTools(OfferedTools):
    """Tools of every name, for tests that offer none."""

    def __bool__(self) -> bool:
        return True

    def __contains__(self, name: object) -> bool:
        return bool(name)

    def has_name_with(self, beginning: str) -> bool:
        return True


class Text(str):
    """A text that is equal to another one with other white space around it, or to None."""

    def __eq__(self, other: object) -> bool:
        return self.strip() == (other.strip() if isinstance(other, str) else other or "")

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__

    def __add__(self, other: str) -> "Text":
        return Text(str(self) + other)


class Arguments(Text):
    """JSON that is equal to the same value with other white space."""

    def __eq__(self, other: object) -> bool:
        values = json_or_none(str(self)), json_or_none(str(other))
        return super().__eq__(other) if None in values else values[0] == values[1]

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__

    def __add__(self, other: str) -> "Arguments":
        return Arguments(str(self) + other)


class Unasked:
    """What Corral's parser does not say: equal to all that a test expects."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]  # nothing looks it up


class Record(SimpleNamespace):
    """An object of vLLM's protocol. Tool calls are equal if their functions are."""

    tools = tool_choice = content = reasoning = id = name = function = None
    tool_calls: Sequence[Any] = ()
    type = "function"

    def __init__(self, **values: Any) -> None:
        super().__init__(**{name: _as_record(name, value) for name, value in values.items()})

    def __eq__(self, other: Any) -> bool:
        if self.function is not None:
            return self.function == getattr(other, "function", None)
        if "arguments" in vars(self):
            ours, theirs = (Arguments(each.arguments) for each in (self, other))
            return (self.name, ours) == (other.name, theirs)
        return super().__eq__(other)

    __hash__ = None

    @classmethod
    def model_validate(cls, values: dict[str, Any]) -> "Record":
        return cls(**values)


def _as_record(name: str, value: Any) -> Any:
    return Record(**value) if name == "function" and isinstance(value, dict) else value


class EndOfText(str):
    """The last piece of a stream, which vLLM's parsers are not told about."""


class Vocabulary(dict[str, int]):
    """Has every token."""

    def __missing__(self, token: str) -> int:
        return self.setdefault(token, len(self))

    def __contains__(self, token: object) -> bool:
        return True

    def get(self, token: str, default: Any = None) -> int:
        return self[token]


class Tokenizer:
    """Splits into words and markers; vLLM's tests would download a model's."""

    eos_token_id = -1
    all_special_tokens: tuple[str, ...] = ()

    def __init__(self, *_: Any, **__: Any) -> None:
        self.vocab = Vocabulary()

    @classmethod
    def from_pretrained(cls, *_: Any, **__: Any) -> "Tokenizer":
        return cls()

    def tokenize(self, text: str, **_: Any) -> list[str]:
        return re.findall(r"<[^<>\s]+>|\[/?[A-Z_]+\]|\w+|\W", text)

    def encode(self, text: str, **_: Any) -> list[int]:
        return [self.vocab[piece] for piece in self.tokenize(text)]

    def decode(self, ids: int | Sequence[int], **_: Any) -> str:
        pieces = list(self.vocab)
        return "".join(pieces[each] for each in ([ids] if isinstance(ids, int) else ids))

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return "".join(tokens)

    def convert_tokens_to_ids(self, tokens: list[str]) -> list[int]:
        return [self.vocab[token] for token in tokens]

    def convert_ids_to_tokens(self, ids: list[int], **_: Any) -> list[str]:
        return [self.decode(each) for each in ids]

    def get_vocab(self) -> Vocabulary:
        return self.vocab


class Parser:
    """vLLM's interface of a parser of tool calls or of reasoning."""

    def __init__(
        self, tokenizer: Any = None, tools: Any = None, chat_template_kwargs: Any = None, **_: Any
    ) -> None:
        self._format = _opened(running.turn_format, chat_template_kwargs or {})
        self.model_tokenizer = tokenizer if isinstance(tokenizer, Tokenizer) else Tokenizer()
        self.vocab = self.model_tokenizer.get_vocab()
        self._tools = tools
        self._stream: TurnParser | None = None

    def __getattr__(self, name: str) -> Any:
        pytest.skip(f"{name} is vLLM's own")

    def extract_tool_calls(self, model_output: str, request: Any = None) -> Record:
        running.texts.setdefault((self._format, model_output), self._offered(request))
        parser = self._new(request)
        parser.feed(model_output)
        parser.finish()
        message = _message(_joined(parser))
        message.content = message.content if (message.content or "").strip() else None
        return message

    def extract_reasoning(self, model_output: str, request: Any = None) -> tuple[Any, Any]:
        message = self.extract_tool_calls(model_output, request)
        return message.reasoning, Unasked() if message.tool_calls else message.content

    def extract_tool_calls_streaming(
        self,
        previous_text: str = "",
        current_text: str = "",
        delta_text: str = "",
        previous_token_ids: Any = (),
        current_token_ids: Any = (),
        delta_token_ids: Any = (),
        request: Any = None,
    ) -> Record | None:
        stream = self._stream = self._stream or self._new(request)
        stream.feed(delta_text)
        if isinstance(delta_text, EndOfText):
            running.texts.setdefault((self._format, current_text), self._offered(request))
            stream.finish()
            self._stream = None
        delta = _joined(stream)
        is_empty = not (delta.content or delta.reasoning or delta.tool_calls)
        return None if is_empty else _message(delta)

    extract_reasoning_streaming = extract_tool_calls_streaming

    def is_reasoning_end(self, *_: Any) -> Unasked:
        return Unasked()

    extract_content_ids = is_reasoning_end_streaming = is_reasoning_end

    def _new(self, request: Any) -> TurnParser:
        return TurnParser(self._format, tools=self._offered(request))

    def _offered(self, request: Any) -> OfferedTools:
        tools = self._tools or getattr(request, "tools", None)
        if isinstance(tools, list) and tools:
            return OfferedTools(dict(map(_schema, tools)))
        return AnyTools({})


def _opened(turn_format: TurnFormat, variables: dict[str, Any]) -> TurnFormat:
    """The format where the prompt opens a thought, as a template does by its variables."""
    for name in ("enable_thinking", "thinking"):
        if name in variables:
            turn_format = turn_format._replace(starts_in_reasoning=bool(variables[name]))
    if "thinking_mode" in variables:
        is_open = variables["thinking_mode"] == "enabled"
        turn_format = turn_format._replace(starts_in_reasoning=is_open)
    return turn_format


def _joined(parser: TurnParser) -> TurnDelta:
    """The new output as one delta, without its order."""
    first, *later = parser.pop_deltas()
    for delta in later:
        first.content += delta.content
        first.reasoning += delta.reasoning
        first.tool_calls += delta.tool_calls
    return first


def _message(delta: TurnDelta) -> Record:
    calls = [
        Record(
            index=call.index,
            id=call.id or None,
            function=Record(name=call.name or None, arguments=Arguments(call.arguments)),
        )
        for call in delta.tool_calls
    ]
    content = Text(delta.content) if delta.content else None
    reasoning = Text(delta.reasoning) if delta.reasoning else None
    return Record(tools_called=bool(calls), tool_calls=calls, content=content, reasoning=reasoning)


def _schema(tool: Any) -> tuple[str, str]:
    tool = Record(**tool) if isinstance(tool, dict) else tool
    function = tool if tool.function is None else tool.function
    return function.name, json.dumps(getattr(function, "parameters", None) or {})


class Running:
    """The format of the running test, and what all tests have parsed, with the tools."""

    def __init__(self) -> None:
        self.turn_format = TurnFormat()
        self.texts: dict[tuple[TurnFormat, str], OfferedTools] = {}

    def differing_splits(self) -> list[str]:
        """The texts that are parsed otherwise in two pieces, each with the places."""
        found = []
        for (turn_format, text), tools in self.texts.items():
            whole = _parsed(turn_format, tools, text)
            cuts = [
                cut
                for cut in range(1, len(text))
                if _parsed(turn_format, tools, text[:cut], text[cut:]) != whole
            ]
            found += [f"{turn_format.tool_calls}: {text!r} at {cuts}"] if cuts else []
        return found


def _parsed(turn_format: TurnFormat, tools: OfferedTools, *pieces: str) -> Any:
    numbers = itertools.count()
    parser = TurnParser(turn_format, tools=tools, new_call_id=lambda: f"id{next(numbers)}")
    for piece in pieces:
        parser.feed(piece)
    parser.finish()
    delta = _joined(parser)
    return delta.content, delta.reasoning, delta.tool_calls


running = Running()


def _own(name: str) -> Any:
    def call(*_: Any, **__: Any) -> None:
        pytest.skip(f"{name} is vLLM's own")

    return call


@cache
def _constants(module: str) -> dict[str, Any]:
    """The constants of a module of vLLM's source that are literals."""
    path = SOURCE / (module.replace(".", "/") + ".py")
    values: dict[str, Any] = {}
    for node in ast.parse(path.read_text()).body if path.is_file() else ():
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            values |= {ast.unparse(target): node.value.value for target in node.targets}
    return values


class StandIn(ModuleType):
    """A module whose names are constants, records, parsers and tokenizers."""

    __path__: list[str] = []  # noqa: RUF012 (as packages have it)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in ("AutoTokenizer", "PreTrainedTokenizerBase", "TokenizerLike", "get_tokenizer"):
            value: Any = Tokenizer
        elif name.endswith("ParserManager"):
            value = SimpleNamespace(
                get_tool_parser=lambda _: Parser, get_reasoning_parser=lambda _: Parser
            )
        elif name.endswith(("Parser", "Adapter")):
            value = Parser
        elif name == "is_mistral_tokenizer":
            value = lambda _: False  # noqa: E731 (of this name)
        elif name in (constants := _constants(self.__name__)):
            value = constants[name]
        elif name[:1].isupper() and not name.isupper():
            value = type(name, (Record,), {})
        else:
            value = _own(f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds stand-ins for vLLM and for what its tests import."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name.partition(".")[0] in STANDS_IN:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


class Plugin:
    """Sets the format of a test's model, and collects outcomes."""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        name = item.path.stem.removeprefix("test_")
        is_thought = item.path.parent.name == "reasoning"
        running.turn_format = (THOUGHTS if is_thought else CALLS)[name.rsplit("_", 2)[0]]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.outcomes[report.nodeid] = str(report.longrepr)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        text = str(report.longrepr)
        if report.failed and not text.startswith("[XPASS"):
            self.outcomes[report.nodeid] = text
        elif report.when == "call" and not report.skipped:
            self.outcomes[report.nodeid] = ""


def _with_end(run: Any) -> Any:
    def run_to_end(parser: Any, deltas: Any, *rest: Any, **options: Any) -> Any:
        if isinstance(deltas, str):
            deltas = parser.model_tokenizer.tokenize(deltas)
        return run(parser, [*deltas, EndOfText()], *rest, **options)

    return run_to_end


def main() -> None:
    sys.meta_path.insert(0, Finder())
    sys.path.insert(0, str(SOURCE))
    for module, name in (("tool_parsers", "tool"), ("reasoning", "reasoning")):
        utils = importlib.import_module(f"tests.{module}.utils")
        run = f"run_{name}_extraction_streaming"
        setattr(utils, run, _with_end(getattr(utils, run)))
    plugin = Plugin()
    paths = [f"tests/tool_parsers/test_{name}_tool_parser.py" for name in CALLS]
    paths += [f"tests/reasoning/test_{name}_reasoning_parser.py" for name in THOUGHTS]
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    options = ["-q", "--tb=short", "--assert=plain", "-p", "no:cacheprovider", "-p", "no:warnings"]
    options += ["-c", os.devnull, "--rootdir", str(SOURCE)]
    pytest.main([*options, *(str(SOURCE / path) for path in paths)], plugins=[plugin])
    report = {
        "outcomes": plugin.outcomes,
        "num_texts": len(running.texts),
        "texts": [(each.tool_calls, text) for each, text in running.texts],
        "num_splits": sum(len(text) for _, text in running.texts),
        "differing_splits": running.differing_splits() if SPLITS else [],
    }
    Path(sys.argv[2]).write_text(json.dumps(report))


main()
