"""What models of each family write, and what is in it: the corpus of the parsers' tests."""

from inference_svc.chat.parsers import ReasoningFormat, ToolCallFormat, TurnFormat
from tests.support.turns import NO_TOOLS, Golden, Parsed

HERMES = TurnFormat(ReasoningFormat.THINK, ToolCallFormat.HERMES)
LLAMA = TurnFormat(tool_calls=ToolCallFormat.LLAMA)
PYTHONIC = TurnFormat(tool_calls=ToolCallFormat.PYTHONIC)
MISTRAL = TurnFormat(ReasoningFormat.MISTRAL, ToolCallFormat.MISTRAL)
DEEPSEEK = TurnFormat(ReasoningFormat.THINK, ToolCallFormat.DEEPSEEK)
DEEPSEEK_V32 = TurnFormat(ReasoningFormat.THINK, ToolCallFormat.DEEPSEEK_V32)
KIMI = TurnFormat(ReasoningFormat.THINK, ToolCallFormat.KIMI)
COHERE = TurnFormat(ReasoningFormat.COHERE, ToolCallFormat.COHERE)
APERTUS = TurnFormat(tool_calls=ToolCallFormat.APERTUS)
QWEN_CODER = TurnFormat(ReasoningFormat.THINK, ToolCallFormat.QWEN_CODER)
GLM = TurnFormat(ReasoningFormat.THINK, ToolCallFormat.GLM)
MINIMAX = TurnFormat(ReasoningFormat.THINK, ToolCallFormat.MINIMAX)
GEMMA = TurnFormat(ReasoningFormat.GEMMA, ToolCallFormat.GEMMA)
HARMONY = TurnFormat(ReasoningFormat.HARMONY, ToolCallFormat.HARMONY)
JSON = TurnFormat(tool_calls=ToolCallFormat.JSON)
R1 = TurnFormat(ReasoningFormat.THINK, ToolCallFormat.DEEPSEEK, starts_in_reasoning=True)

PARIS = '{"city": "Paris"}'
ONE = (("get_weather", PARIS),)
TWO = (*ONE, ("get_time", "{}"))
ODD = '{"city": "Zü\\"rich\\" \\n🙂 <x> {]", "days": 2}'
ODD_CALL = (("get_weather", ODD),)


def _content(text: str) -> Parsed:
    return Parsed(content=text)


def _malformed(turn_format: TurnFormat, *texts: str) -> list[Golden]:
    """Texts that are no calls, and so content as they stand."""
    return [
        Golden(f"malformed {number}", turn_format, text, _content(text))
        for number, text in enumerate(texts)
    ]


_HERMES = [
    Golden(
        "text, thought, two calls",
        HERMES,
        "<think>\nHm 🙂\n</think>\n\nLet me see.\n"
        '<tool_call>\n{"name": "get_weather", "arguments": ' + PARIS + "}\n</tool_call>\n"
        '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>\nDone.',
        Parsed("Let me see.Done.", "Hm 🙂", TWO),
    ),
    Golden(
        "escapes",
        HERMES,
        f'<tool_call>{{"name": "get_weather", "arguments": {ODD}}}</tool_call>',
        Parsed(calls=ODD_CALL),
    ),
    Golden(
        "call in OpenAI's form",
        HERMES,
        '<tool_call>{"type": "function", "function": {"name": "get_time"}}</tool_call>',
        Parsed(calls=(("get_time", "{}"),)),
    ),
    Golden(
        "arguments that break",
        HERMES,
        '<tool_call>{"name": "get_weather", "arguments": {"city": \'Paris\'}}</tool_call> x',
        Parsed("x", calls=(("get_weather", "{\"city\": 'Paris'}}"),)),
    ),
    *_malformed(
        HERMES,
        "<tool_call>",
        "a\n<tool_call>\n{oops}\n</tool_call>\nb",
        '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": NaN}</tool_call>',
        '<tool_call>{"arguments": ' + "[" * 950 + "]" * 950 + ', "name": "f"}</tool_call>',
    ),
]
_LLAMA = [
    Golden(
        "a turn that is a call",
        LLAMA,
        '{"name": "get_weather", "parameters": ' + PARIS + "}",
        Parsed(calls=ONE),
    ),
    Golden(
        "several, by semicolons",
        LLAMA,
        '\n{"name": "get_weather", "parameters": ' + PARIS + '}; {"name": "get_time", '
        '"parameters": {}}',
        Parsed(calls=TWO),
    ),
    Golden(
        "a list, with a type",
        LLAMA,
        '[{"type": "function", "name": "get_weather", "parameters": ' + PARIS + "}, "
        '{"name": "get_time"}]',
        Parsed(calls=TWO),
    ),
    Golden(
        "after the tag, between texts",
        LLAMA,
        'Let me see. <|python_tag|>{"name": "get_weather", "parameters": ' + PARIS + "} and <b>",
        Parsed("Let me see.and <b>", calls=ONE),
    ),
    Golden(
        "escapes", LLAMA, f'{{"name": "get_weather", "parameters": {ODD}}}', Parsed(calls=ODD_CALL)
    ),
    Golden(
        "a built-in tool",
        LLAMA,
        "<|python_tag|>get_weather.call(city='Paris')",
        Parsed(calls=ONE),
    ),
    Golden(
        "code",
        LLAMA,
        '<|python_tag|>print("é\\n")\nprint(2)',
        Parsed(calls=(("python", '{"code": "print(\\"é\\\\n\\")\\nprint(2)"}'),)),
    ),
    Golden(
        "as Python",
        LLAMA,
        '[get_weather(city="Paris"), get_time()]',
        Parsed(calls=TWO),
    ),
    Golden(
        "Llama 4, in markers",
        LLAMA,
        '<|python_start|>[get_weather(city="Paris")]<|python_end|>',
        Parsed(calls=ONE),
    ),
    Golden(
        "a function tag",
        LLAMA,
        f"So: <function=get_weather>{PARIS}</function> and",
        Parsed("So:and", calls=ONE),
    ),
    *_malformed(
        LLAMA,
        '{"city": "Paris", "name": "x"}',
        '{"name": "unknown_tool", "parameters": {}}',
        '{"name": "get_weather", "parameters": [1}',
        "[1, 2, 3]",
        " [unknown(a=1)] ",
        "[get_time(1)] etc.",
        "<|python_tag|>",
        "see <function=unknown>{}</function>",
    ),
    Golden(
        "code without an interpreter",
        LLAMA,
        "<|python_tag|>print(1)",
        _content("<|python_tag|>print(1)"),
        tools=NO_TOOLS,
    ),
    Golden(
        "text behind calls",
        LLAMA,
        '{"name": "get_time"} {"city": 1}',
        Parsed('{"city": 1}', calls=(("get_time", "{}"),)),
    ),
]
_PYTHONIC = [
    Golden(
        "in markers, between texts",
        PYTHONIC,
        'Wait. <|tool_call_start|>[get_weather(city="Paris"), get_time()]<|tool_call_end|> Done.',
        Parsed("Wait.Done.", calls=TWO),
    ),
    Golden("bare", PYTHONIC, "[get_weather(city='Paris'), get_time()]", Parsed(calls=TWO)),
    Golden(
        "every kind of value",
        PYTHONIC,
        "[get_weather(city='Zü\\'rich\\x41\\u00e9\\n🙂', days=-2, exact=True, note=None, "
        "places=[1.5, ('a', \"b)\"), {'k': {'x': False}}], )]",
        Parsed(
            calls=(
                (
                    "get_weather",
                    '{"city": "Zü\'richAé\\n🙂", "days": -2, "exact": true, "note": null, '
                    '"places": [1.5, ["a", "b)"], {"k": {"x": false}}]}',
                ),
            )
        ),
    ),
    *_malformed(
        PYTHONIC,
        "[1, 2]",
        "[not_offered(a=1)]",
        "<|tool_call_start|>[get_weather(city=)]<|tool_call_end|>",
        "<|tool_call_start|>[get_weather(city='Paris'",
        "<|tool_call_start|>[f(a=" + "[" * 500,
        "<function_calls>nothing</function_calls>",
        '<function_calls>[{"city": "Paris"}]</function_calls>',
    ),
    Golden(
        "OLMo's, a call a line, between texts",
        PYTHONIC,
        'Sure.<function_calls>get_weather(city="Paris")\nget_time()</function_calls>\nDone.',
        Parsed("Sure.Done.", calls=TWO),
    ),
    Golden(
        "OLMo's, with commas and without an end",
        PYTHONIC,
        '<function_calls>\nget_weather(city="Paris"),\nget_time()',
        Parsed(calls=TWO),
    ),
    Golden(
        "a list of lines, and one that nothing ends",
        PYTHONIC,
        '<|tool_call_start|>[get_weather(city="Paris")\nget_time()] ok '
        "<|tool_call_start|>[get_time() </s>",
        Parsed("ok</s>", calls=(*TWO, TWO[1])),
    ),
    Golden(
        "a bracket too many",
        PYTHONIC,
        "<function_calls>get_time()]</function_calls> ok",
        Parsed("ok", calls=(("get_time", "{}"),)),
    ),
    Golden(
        "OLMo's, the second is malformed",
        PYTHONIC,
        '<function_calls>get_weather(city="Paris")\nget_time(</function_calls>',
        Parsed("get_time(</function_calls>", calls=ONE),
    ),
    Golden(
        "JSON in markers",
        PYTHONIC,
        'Hm. <|tool_call_start|>[{"name": "get_weather", "arguments": ' + PARIS + "}, "
        '{"name": "get_time"}]<|tool_call_end|> Done.',
        Parsed("Hm.Done.", calls=TWO),
    ),
    Golden(
        "JSON in markers, arguments that break",
        PYTHONIC,
        '<|tool_call_start|>{"name": "get_time", "arguments": {x\'}<|tool_call_end|> Done.',
        Parsed("Done.", calls=(("get_time", "{x'}"),)),
    ),
    Golden(
        "the second is malformed",
        PYTHONIC,
        "<|tool_call_start|>[get_time(), f(]<|tool_call_end|>",
        Parsed("f(]<|tool_call_end|>", calls=(("get_time", "{}"),)),
    ),
]
_MISTRAL = [
    Golden(
        "a list",
        MISTRAL,
        '[THINK]Hm.[/THINK]Sure. [TOOL_CALLS] [{"name": "get_weather", "arguments": '
        + PARIS
        + ', "id": "abcdefghi"}, {"name": "get_time", "arguments": {}}] ok',
        Parsed("Sure.ok", "Hm.", TWO),
    ),
    Golden(
        "one id for two calls",
        MISTRAL,
        f"[TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS]{PARIS}"
        "[TOOL_CALLS]get_time[CALL_ID]abcdefghi[ARGS]{}",
        Parsed(calls=TWO),
    ),
    Golden(
        "names and arguments",
        MISTRAL,
        f"Sure. [TOOL_CALLS]get_weather[ARGS]{PARIS}[TOOL_CALLS]get_time[ARGS]{{}} ok",
        Parsed("Sure.ok", calls=TWO),
    ),
    Golden(
        "with ids",
        MISTRAL,
        f"[TOOL_CALLS]get_weather[CALL_ID]a1b2c3d4e[ARGS]{PARIS}",
        Parsed(calls=ONE),
    ),
    Golden("without ARGS", MISTRAL, f"[TOOL_CALLS]get_weather{ODD}", Parsed(calls=ODD_CALL)),
    Golden(
        "one object",
        MISTRAL,
        '[TOOL_CALLS]{"name": "get_weather", "arguments": ' + PARIS + "}",
        Parsed(calls=ONE),
    ),
    *_malformed(
        MISTRAL,
        "[TOOL_CALLS]",
        "[TOOL_CALLS] hello",
        "[TOOL_CALLS][1, 2]",
        "[TOOL_CALLS]get_time[ARGS]",
        "[TOOL_CALLS]get_time[ARGS]nothing",
        "a [TOOL_CALLS] {} b",
    ),
    Golden(
        "arguments that break in a list, then a good call",
        MISTRAL,
        '[TOOL_CALLS][{"name": "get_weather", "arguments": {\'city\'}}]'
        "[TOOL_CALLS]get_time[ARGS]{}",
        Parsed(calls=(("get_weather", "{'city'}}]"), ("get_time", "{}"))),
    ),
    Golden(
        "arguments that break, then a good call",
        MISTRAL,
        "[TOOL_CALLS]get_weather[ARGS]{'city'}[TOOL_CALLS]get_time[ARGS]{}",
        Parsed(calls=(("get_weather", "{'city'}"), ("get_time", "{}"))),
    ),
]
_V3_ONE = (
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
    + PARIS
    + "\n```<｜tool▁call▁end｜>"
)
_V31_ONE = f"<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{PARIS}<｜tool▁call▁end｜>"
_V31_TWO = _V31_ONE + "<｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
_DEEPSEEK = [
    Golden(
        "V3",
        DEEPSEEK,
        f"Sure.\n<｜tool▁calls▁begin｜>{_V3_ONE}\n{_V3_ONE}<｜tool▁calls▁end｜>\nok",
        Parsed("Sure.ok", calls=ONE + ONE),
    ),
    Golden(
        "V3.1",
        DEEPSEEK,
        f"Sure.<｜tool▁calls▁begin｜>{_V31_TWO}<｜tool▁calls▁end｜>",
        Parsed("Sure.", calls=TWO),
    ),
    Golden("without the list's marker", DEEPSEEK, _V31_ONE, Parsed(calls=ONE)),
    Golden(
        "plain characters in the marker",
        DEEPSEEK,
        f"<｜tool_calls_begin｜>{_V3_ONE}",
        Parsed(calls=ONE),
    ),
    Golden(
        "R1 starts inside the thought",
        R1,
        f"Let me think.\n</think>\n\nWell.{_V3_ONE}",
        Parsed("Well.", "Let me think.", ONE),
    ),
    Golden(
        "R1 opens the thought itself",
        R1,
        "<think>\nLet me think.\n</think>\n\nWell.",
        Parsed("Well.", "Let me think."),
    ),
    Golden(
        "the prompt opened the thought",
        DEEPSEEK,
        "So.</think>Yes.",
        Parsed("Yes.", "So."),
        opens_in_reasoning=True,
    ),
    Golden(
        "escapes",
        DEEPSEEK,
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{ODD}<｜tool▁call▁end｜>",
        Parsed(calls=ODD_CALL),
    ),
    *_malformed(
        DEEPSEEK,
        "<｜tool▁calls▁begin｜>",
        "a <｜tool▁calls▁begin｜> b <｜tool▁calls▁end｜> c",
        "<｜tool▁call▁begin｜>get_weather",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\nnothing```",
    ),
]


def _kimi(name: str, arguments: str) -> str:
    begin, separator = "<|tool_call_begin|>", "<|tool_call_argument_begin|>"
    return f"{begin}{name}{separator}{arguments}<|tool_call_end|>"


_KIMI_BEGIN, _KIMI_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_KIMI_ONE = _kimi("functions.get_weather:0", PARIS)
_KIMI = [
    Golden(
        "thought, text, two calls, text",
        KIMI,
        f"<think>Hm.</think>Sure.{_KIMI_BEGIN}{_KIMI_ONE}{_kimi('functions.get_time:1', '{}')}"
        f"{_KIMI_END}Done.",
        Parsed("Sure.Done.", "Hm.", TWO),
    ),
    Golden(
        "no arguments at all",
        KIMI,
        f"{_KIMI_BEGIN}{_kimi('functions.get_time:0', '')}{_KIMI_END}",
        Parsed("", "", (("get_time", "{}"),)),
    ),
    Golden(
        "white space everywhere",
        KIMI,
        f"{_KIMI_BEGIN}\n<|tool_call_begin|> functions.get_weather:12 <|tool_call_argument_begin|>"
        f"\n{PARIS}\n<|tool_call_end|>\n{_KIMI_END}\n",
        Parsed(calls=ONE),
    ),
    Golden(
        "one id for two calls, the section in the singular, without an end",
        KIMI,
        f"<|tool_call_section_begin|>{_KIMI_ONE}{_KIMI_ONE}",
        Parsed(calls=ONE + ONE),
    ),
    Golden(
        "names that are no ids, without a section",
        KIMI,
        _kimi("get_weather", PARIS) + _kimi("get_time:3", "{}"),
        Parsed(calls=TWO),
    ),
    Golden(
        "a tool that nobody offered",
        KIMI,
        f"{_KIMI_BEGIN}{_kimi('functions.a.b:7', '{}')}{_KIMI_END}",
        Parsed(calls=(("a.b", "{}"),)),
    ),
    Golden(
        "escapes",
        KIMI,
        f"{_KIMI_BEGIN}{_kimi('functions.get_weather:0', ODD)}{_KIMI_END}",
        Parsed(calls=ODD_CALL),
    ),
    Golden(
        "arguments that break, then a good call",
        KIMI,
        _KIMI_BEGIN
        + _kimi("functions.get_weather:0", "{'city'}")
        + f"{_kimi('functions.get_time:1', '{}')}{_KIMI_END}",
        Parsed(calls=(("get_weather", "{'city'}"), ("get_time", "{}"))),
    ),
    Golden(
        "cut off",
        KIMI,
        f"{_KIMI_BEGIN}{_KIMI_ONE}".removesuffix('is"}<|tool_call_end|>'),
        Parsed(calls=(("get_weather", '{"city": "Par'),)),
    ),
    *_malformed(
        KIMI,
        _KIMI_BEGIN,
        f"a {_KIMI_BEGIN} b {_KIMI_END} c",
        f"{_KIMI_BEGIN}<|tool_call_begin|>functions.get_time:0",
        _kimi("functions.get_time:0", "now"),
        _kimi("", "{}"),
    ),
]


def _action(*calls: str) -> str:
    items = ",\n    ".join(
        f'{{"tool_call_id": "{number}", {call}}}' for number, call in enumerate(calls)
    )
    return f"<|START_ACTION|>[\n    {items}\n]<|END_ACTION|>"


_COHERE_ONE = f'"tool_name": "get_weather", "parameters": {PARIS}'
_COHERE_TIME = '"tool_name": "get_time", "parameters": {}'
_COHERE = [
    Golden(
        "thought and two calls",
        COHERE,
        f"<|START_THINKING|>Hm.<|END_THINKING|>{_action(_COHERE_ONE, _COHERE_TIME)}",
        Parsed("", "Hm.", TWO),
    ),
    Golden(
        "an answer in its frame",
        COHERE,
        "<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|> It is <b> here.\n<|END_RESPONSE|>",
        Parsed(" It is <b> here.\n", "Hm."),
    ),
    Golden(
        "answers in the newer frame, before and after calls",
        COHERE,
        f"<|START_TEXT|>Sure.<|END_TEXT|>{_action(_COHERE_ONE)}<|START_TEXT|>Done.<|END_TEXT|>",
        Parsed("Sure.Done.", calls=ONE),
    ),
    Golden(
        "nobody offered tools",
        COHERE,
        f"<|START_RESPONSE|>{_action(_COHERE_ONE)}<|END_RESPONSE|>",
        _content(_action(_COHERE_ONE)),
        tools=NO_TOOLS,
    ),
    Golden(
        "a frame in an argument",
        COHERE,
        _action('"tool_name": "get_weather", "parameters": {"city": "<|END_TEXT|>"}'),
        Parsed(calls=(("get_weather", '{"city": "<|END_TEXT|>"}'),)),
    ),
    Golden(
        "without ids, in one line",
        COHERE,
        f"<|START_ACTION|>[{{{_COHERE_ONE}}}, {{{_COHERE_TIME}}}]<|END_ACTION|>",
        Parsed(calls=TWO),
    ),
    Golden(
        "other keys, in another order",
        COHERE,
        f'<|START_ACTION|>[{{"parameters": {PARIS}, "tool_name": "get_weather"}}, '
        '{"tool_call_id": 1, "tool_name": "get_time"}]<|END_ACTION|>',
        Parsed(calls=TWO),
    ),
    Golden(
        "one call without a list, of a tool that nobody offered",
        COHERE,
        '<|START_ACTION|>{"tool_name": "unknown", "parameters": {}}<|END_ACTION|>',
        Parsed(calls=(("unknown", "{}"),)),
    ),
    Golden(
        "escapes",
        COHERE,
        _action(f'"tool_name": "get_weather", "parameters": {ODD}'),
        Parsed(calls=ODD_CALL),
    ),
    Golden(
        "arguments that break",
        COHERE,
        _action('"tool_name": "get_time", "parameters": {x\'}') + "<|START_TEXT|>Done.<|END_TEXT|>",
        Parsed("Done.", calls=(("get_time", "{x'}}\n]"),)),
    ),
    Golden(
        "the second is none",
        COHERE,
        _action(_COHERE_ONE, '"tool": "get_time"'),
        Parsed(
            ',\n    {"tool_call_id": "1", "tool": "get_time"}\n]<|END_ACTION|>',
            calls=ONE,
        ),
    ),
    Golden(
        "cut off",
        COHERE,
        _action(_COHERE_ONE, _COHERE_ONE).removesuffix('is"}}\n]<|END_ACTION|>'),
        Parsed(calls=(*ONE, ("get_weather", '{"city": "Par'))),
    ),
    *_malformed(
        COHERE,
        "<|START_ACTION|>",
        "a <|START_ACTION|> b <|END_ACTION|> c",
        "<|START_ACTION|>[]<|END_ACTION|>",
        '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "get_w',
        '<|START_ACTION|>[{"tool_name": "", "parameters": {}}]<|END_ACTION|>',
    ),
    Golden(
        "malformed, around a frame",
        COHERE,
        '<|START_ACTION|>[{"a": "<|START_TEXT|>"}]<|END_ACTION|>',
        _content('<|START_ACTION|>[{"a": ""}]<|END_ACTION|>'),
    ),
]
_APERTUS = [
    Golden(
        "text, two calls, text",
        APERTUS,
        'Sure. <|tools_prefix|>[{"get_weather": ' + PARIS + '}, {"get_time": {}}]<|tools_suffix|>'
        "\nDone.",
        Parsed("Sure.Done.", calls=TWO),
    ),
    Golden(
        "one without a list and an end, of a tool that nobody offered",
        APERTUS,
        '<|tools_prefix|> {"unknown": {}} ok',
        Parsed("ok", calls=(("unknown", "{}"),)),
    ),
    Golden(
        "escapes",
        APERTUS,
        f'<|tools_prefix|>[{{"get_weather": {ODD}}}]<|tools_suffix|>',
        Parsed(calls=ODD_CALL),
    ),
    Golden(
        "arguments that break",
        APERTUS,
        '<|tools_prefix|>[{"get_time": {x\'}}]<|tools_suffix|> ok',
        Parsed("ok", calls=(("get_time", "{x'}}]"),)),
    ),
    Golden(
        "cut off",
        APERTUS,
        '<|tools_prefix|>[{"get_time": {}}, {"get_weather": {"city": "Par',
        Parsed(calls=(("get_time", "{}"), ("get_weather", '{"city": "Par'))),
    ),
    *_malformed(
        APERTUS,
        "<|tools_prefix|>",
        "<|tools_prefix|>[]<|tools_suffix|>",
        '<|tools_prefix|>[{"get_time": 1}]<|tools_suffix|>',
        '<|tools_prefix|>["get_time": {}]<|tools_suffix|>',
        '<|tools_prefix|>[{"": {}}]<|tools_suffix|>',
        "a <|tools_prefix|> b <|tools_suffix|> c",
    ),
]
_DSML = '<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name='
_DEEPSEEK_V32 = [
    Golden(
        "two calls",
        DEEPSEEK_V32,
        "Sure.\n\n<｜DSML｜function_calls>\n"
        f'{_DSML}"city" string="true">Paris</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="other" string="true">5</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        '<｜DSML｜invoke name="get_time">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        Parsed(
            "Sure.",
            calls=(
                ("get_weather", '{"city": "Paris", "other": "5", "days": 3}'),
                ("get_time", "{}"),
            ),
        ),
    ),
    *_malformed(
        DEEPSEEK_V32, "<｜DSML｜function_calls>\nx", '<｜DSML｜invoke name="f">', f"{_DSML}5"
    ),
]


def _coder(*arguments: tuple[str, str], name: str = "get_weather") -> str:
    inside = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments)
    return f"<tool_call>\n<function={name}>\n{inside}</function>\n</tool_call>"


_QWEN_CODER = [
    Golden(
        "text, two calls, text",
        QWEN_CODER,
        f"Sure.\n{_coder(('city', 'Paris'))}\n{_coder(name='get_time')}\nDone.",
        Parsed("Sure.Done.", calls=TWO),
    ),
    Golden(
        "values by the schema",
        QWEN_CODER,
        _coder(
            ("city", '42\n\n "é🙂" \\ </x>\n'),
            ("days", "42"),
            ("exact", "True"),
            ("note", "null"),
            ("places", '["a", {"b": 1}]'),
            ("units", "C"),
        ),
        Parsed(
            calls=(
                (
                    "get_weather",
                    '{"city": "42\\n\\n \\"é🙂\\" \\\\ </x>\\n", "days": 42, "exact": true, '
                    '"note": null, "places": ["a", {"b": 1}], "units": "C"}',
                ),
            )
        ),
    ),
    Golden(
        "values that do not fit the schema, and none in it",
        QWEN_CODER,
        _coder(("days", "three"), ("units", "7"), ("x", "7"), ("y", "seven"), ("z", "NaN")),
        Parsed(
            calls=(
                (
                    "get_weather",
                    '{"days": "three", "units": "7", "x": 7, "y": "seven", "z": "NaN"}',
                ),
            )
        ),
    ),
    Golden(
        "without the outer tag, and without ends",
        QWEN_CODER,
        "<function=get_weather>\n<parameter=city>\nParis\n<parameter=days>\n2\n</function>",
        Parsed(calls=(("get_weather", '{"city": "Paris", "days": 2}'),)),
    ),
    Golden(
        "Seed's outer tag",
        QWEN_CODER,
        _coder(("city", "Paris")).replace("tool_call>", "seed:tool_call>"),
        Parsed(calls=ONE),
    ),
    Golden(
        "cut off inside a value",
        QWEN_CODER,
        "<tool_call><function=get_weather><parameter=city>\nPar",
        Parsed(calls=(("get_weather", '{"city": "Par'),)),
    ),
    Golden(
        "cut off between arguments",
        QWEN_CODER,
        "<tool_call><function=get_weather><parameter=city>\nPar</parameter>\n<param",
        Parsed("<param", calls=(("get_weather", '{"city": "Par"'),)),
    ),
    Golden(
        "something else inside",
        QWEN_CODER,
        "<tool_call><function=get_weather><parameter=city>Paris</parameter>oops</function>",
        Parsed("oops</function>", calls=ONE),
    ),
    *_malformed(
        QWEN_CODER,
        "<tool_call>\nhello\n</tool_call>",
        "<tool_call>\n<function=get_time>",
        "<function=get_time>hello</function>",
        "<function=get_time> <parameter>x</parameter>",
        "<function=>",
        "a < b <function",
    ),
]
_GLM = [
    Golden(
        "two calls",
        GLM,
        "<think></think>Sure.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n"
        "<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n"
        "</tool_call>\n<tool_call>get_time\n</tool_call>",
        Parsed(
            "Sure.", calls=(("get_weather", '{"city": "Paris", "days": 3}'), ("get_time", "{}"))
        ),
    ),
    *_malformed(GLM, "<tool_call>", "<tool_call>get time</tool_call>", "<tool_call>f<arg_key>x"),
]
_MINIMAX = [
    Golden(
        "two calls",
        MINIMAX,
        '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Paris</parameter>'
        '\n</invoke>\n<invoke name="get_time">\n</invoke>\n</minimax:tool_call>\nDone.',
        Parsed("Done.", calls=TWO),
    ),
    *_malformed(MINIMAX, "<minimax:tool_call>x", '<invoke name="f">x'),
]
_GEMMA = [
    Golden(
        "thought and two calls",
        GEMMA,
        "<|channel>thought\nHm 🙂\n<channel|>Sure. "
        '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>}'
        "<tool_call|><|tool_call>call:get_time{}<tool_call|> ok",
        Parsed("Sure.ok", "Hm 🙂", TWO),
    ),
    Golden(
        "every kind of value",
        GEMMA,
        '<|tool_call>call:get_weather{city:<|"|>a "b" {c},\n\\d é<|"|>,days:-2,exact:true,'
        "note:null,"
        'places:[1.5,<|"|>x<|"|>,{<|"|>k y<|"|>:{z:"w\\n"}}],units:C}<tool_call|>',
        Parsed(
            calls=(
                (
                    "get_weather",
                    '{"city": "a \\"b\\" {c},\\n\\\\d é", "days": -2, "exact": true, "note": null, '
                    '"places": [1.5, "x", {"k y": {"z": "w\\n"}}], "units": "C"}',
                ),
            )
        ),
    ),
    Golden(
        "FunctionGemma",
        GEMMA,
        "<start_function_call>call:get_weather{city:<escape>Paris<escape>}<end_function_call>",
        Parsed(calls=ONE),
    ),
    Golden(
        "arguments that break",
        GEMMA,
        "<|tool_call>call:get_weather{days:}<tool_call|> ok",
        Parsed("ok", calls=(("get_weather", '{"days": }'),)),
    ),
    Golden(
        "deep nesting",
        GEMMA,
        "<|tool_call>call:get_time{a:" + "[" * 500 + "<tool_call|>",
        Parsed(calls=(("get_time", '{"a": ' + "[" * 500),)),
    ),
    *_malformed(
        GEMMA,
        "<|tool_call>",
        "<|tool_call>get_time{}<tool_call|>",
        "<|tool_call>call:get_time",
        "<|tool_call>call:{}<tool_call|>",
    ),
]


def _call(name: str, arguments: str) -> str:
    return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}"


_HARMONY = [
    Golden(
        "thought and answer",
        HARMONY,
        "<|channel|>analysis<|message|>Hm 🙂 <|end|><|start|>assistant<|channel|>final<|message|>"
        "The answer.\n",
        Parsed("The answer.\n", "Hm 🙂"),
    ),
    Golden(
        "preamble and two calls",
        HARMONY,
        "<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>analysis<|message|>"
        "Two.<|end|><|start|>assistant<|channel|>commentary<|message|>Let me see.<|end|>"
        f"<|start|>assistant{_call('get_weather', PARIS)}<|call|><|start|>assistant"
        f" to=functions.get_time<|channel|>commentary json<|message|> {{}} <|call|>",
        Parsed("Let me see.", "One.\n\nTwo.", TWO),
    ),
    Golden(
        "the recipient comes first",
        HARMONY,
        f" to=functions.get_weather<|channel|>commentary json<|message|>{ODD}",
        Parsed(calls=ODD_CALL),
    ),
    Golden(
        "two answers",
        HARMONY,
        "<|channel|>commentary<|message|>First.<|end|><|start|>assistant<|channel|>final<|message|>"
        "Second.<|return|>",
        Parsed("First.\n\nSecond."),
    ),
    Golden(
        "without a header",
        HARMONY,
        "Plain text, going on.<|return|>",
        Parsed("Plain text, going on."),
    ),
    Golden(
        "without an end",
        HARMONY,
        "<|channel|>analysis<|message|>Hm.<|channel|>final<|message|>Yes.",
        Parsed("Yes.", "Hm."),
    ),
    Golden(
        "the prompt opened the analysis",
        HARMONY,
        "Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
        Parsed("Yes.", "Hm."),
        opens_in_reasoning=True,
    ),
    Golden(
        "reasoning left inline",
        HARMONY,
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
        Parsed("<|channel|>analysis<|message|>Hm.<|end|>Yes."),
        inline_reasoning=True,
    ),
    Golden(
        "nobody offered tools",
        HARMONY,
        _call("get_time", "{}"),
        _content(_call("get_time", "{}")),
        tools=NO_TOOLS,
    ),
    *_malformed(
        HARMONY,
        "<|channel|>",
        "<|channel|>analysis",
        _call("get_time", "now"),
        _call("get_time", ""),
        "<|channel|>commentary to=browser.open<|message|>{}",
        "<|channel|>final<|end|>",
    ),
]
_JSON = [
    Golden(
        "a turn that is a call",
        JSON,
        '{"name": "get_weather", "arguments": ' + PARIS + "}",
        Parsed(calls=ONE),
    ),
    Golden(
        "a list of them under a name",
        JSON,
        '{"tool_calls": [{"name": "get_weather", "arguments": '
        + PARIS
        + '}, {"name": "get_time"}]}',
        Parsed(calls=TWO),
    ),
    Golden(
        "in a fence, between texts",
        JSON,
        'I will:\n```json\n{"name": "get_weather", "arguments": ' + PARIS + "}\n```\nDone.",
        Parsed("I will:Done.", calls=ONE),
    ),
    Golden(
        "in Hermes' tags",
        JSON,
        '<tool_call>{"name": "get_weather", "arguments": ' + PARIS + "}</tool_call>",
        Parsed(calls=ONE),
    ),
    Golden(
        "a list in Phi's tags",
        JSON,
        '<|tool_call|>[{"name": "get_weather", "arguments": ' + PARIS + "}]<|/tool_call|>",
        Parsed(calls=ONE),
    ),
    Golden(
        "a list in Granite's tag, which nothing ends",
        JSON,
        'So: <|tool_call|>[{"name": "get_weather", "arguments": ' + PARIS + "}]",
        Parsed("So:", calls=ONE),
    ),
    Golden(
        "a list in Nemotron's tags",
        JSON,
        '<TOOLCALL>[{"name": "get_weather", "arguments": ' + PARIS + "}]</TOOLCALL>",
        Parsed(calls=ONE),
    ),
    Golden(
        "a list in Jamba's and Apriel's tags, between texts",
        JSON,
        'Sure.\n<tool_calls>[{"name": "get_weather", "arguments": ' + PARIS + ', "id": "a"}, '
        '{"name": "get_time", "arguments": {}}]</tool_calls>\nDone.',
        Parsed("Sure.Done.", calls=TWO),
    ),
    Golden(
        "Command R's fence",
        JSON,
        '```json\n[\n    {\n        "tool_name": "get_weather",\n        "parameters": '
        + PARIS
        + "\n    }\n]```",
        Parsed(calls=ONE),
    ),
    Golden(
        "Gemma 3's fence",
        JSON,
        "```tool_code\n[get_weather(city='Paris'), get_time()]\n```",
        Parsed(calls=TWO),
    ),
    Golden(
        "escapes", JSON, f'{{"name": "get_weather", "arguments": {ODD}}}', Parsed(calls=ODD_CALL)
    ),
    *_malformed(
        JSON,
        '{"answer": 42}',
        '{"name": "Ada", "age": 36}',
        '{"name": "unknown", "arguments": {}}',
        '```python\nprint("hi")\n```\nThat prints hi.',
        'Like this:\n```json\n{"name": "Ada"}\n```',
        '<tool_calls>[{"name": "unknown", "arguments": {}}]</tool_calls>',
        '<tool_calls>[{"name": "get_time", "argum',
        "[1, 2]",
        " \n",
    ),
]

GOLDEN = {
    "hermes": _HERMES,
    "llama": _LLAMA,
    "pythonic": _PYTHONIC,
    "mistral": _MISTRAL,
    "deepseek": _DEEPSEEK,
    "deepseek-v3.2": _DEEPSEEK_V32,
    "kimi": _KIMI,
    "cohere": _COHERE,
    "apertus": _APERTUS,
    "qwen-coder": _QWEN_CODER,
    "glm": _GLM,
    "minimax": _MINIMAX,
    "gemma": _GEMMA,
    "harmony": _HARMONY,
    "json": _JSON,
}
