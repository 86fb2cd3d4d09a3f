"""How each family writes calls, if examples can tell it (`notation.py`).

Models sometimes write variants of the texts, or omit the one that opens all calls.
"""

from inference_svc.chat.parsers.notation import Calls, Tags

HERMES = (
    Calls(
        '{"name": "$name", "arguments": $arguments}',
        "<tool_call>\n", "$_", "\n</tool_call>", encloses_each=True,
    ),
)  # fmt: skip
_DEEPSEEK = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_DEEPSEEK_VARIANTS = "<｜tool_calls_begin｜>", "<｜tool calls begin｜>"
DEEPSEEK = (
    Calls(  # R1 and V3
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>$name\n```json\n$arguments\n```<｜tool▁call▁end｜>",
        _DEEPSEEK[0], "\n", _DEEPSEEK[1], variants=_DEEPSEEK_VARIANTS,
    ),
    Calls(  # V3.1
        "<｜tool▁call▁begin｜>$name<｜tool▁sep｜>$arguments<｜tool▁call▁end｜>",
        _DEEPSEEK[0], "", _DEEPSEEK[1], variants=_DEEPSEEK_VARIANTS,
    ),
    Calls(  # R1 and V3 without the fence
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>$name\n$arguments<｜tool▁call▁end｜>",
        _DEEPSEEK[0], "", _DEEPSEEK[1], variants=_DEEPSEEK_VARIANTS, is_enforced=False,
    ),
    *HERMES,  # templates do not describe tools, so they are described in Hermes
)  # fmt: skip
_KIMI = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
KIMI = (
    Calls(
        "<|tool_call_begin|>$id<|tool_call_argument_begin|>$arguments<|tool_call_end|>",
        _KIMI[0], "", _KIMI[1],
        variants=("<|tool_call_section_begin|>",), id="functions.$name:$number",
    ),
)  # fmt: skip
FUNCTIONARY = (Calls("$name\n$arguments", ">>>", encloses_each=True, only_offered=True),)
LLAMA_FUNCTION = (
    Calls(
        "$name>$arguments", "<function=", "", "</function>", encloses_each=True, only_offered=True
    ),
)
SOLAR = (
    Calls(
        "<|tool_call:begin|>$id<|tool_call:name|>$name<|tool_call:args|>$arguments"
        "<|tool_call:end|>",
        "<|tool_calls|>", "", "<|calls|>",
    ),
)  # fmt: skip
SOLAR_FRAMES = ("<|begin|>assistant", "<|content|>", "<|end|>")
COHERE = (
    Calls(
        '{"tool_call_id": "$number", "tool_name": "$name", "parameters": $arguments}',
        "<|START_ACTION|>[\n    ", ",\n    ", "\n]<|END_ACTION|>",
    ),
)  # fmt: skip
COHERE_FRAMES = ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>")
APERTUS = (Calls('{"$name": $arguments}', "<|tools_prefix|>[", ", ", "]<|tools_suffix|>"),)
_MISTRAL = "[TOOL_CALLS]"
MISTRAL = (  # older models write a list, newer ones a marker for each call
    Calls('{"name": "$name", "arguments": $arguments}', f"{_MISTRAL}[", ", ", "]"),
    Calls('{"name": "$name", "arguments": $arguments, "id": "$id"}', f"{_MISTRAL}[", ", ", "]"),
    Calls("$name[ARGS]$arguments", _MISTRAL, encloses_each=True),
    Calls("$name[CALL_ID]$id[ARGS]$arguments", _MISTRAL, encloses_each=True, id_length=9),
    Calls("$name$arguments", _MISTRAL, encloses_each=True, is_enforced=False),
)
_FUNCTION = "<function=$name>$_$arguments</function>"
_PARAMETER = Tags("<parameter=$key>$value</parameter>$_", padded=True)
QWEN_CODER = tuple(
    Calls(_FUNCTION, f"<{tag}>$_", "$_", f"$_</{tag}>", encloses_each=True, arguments=_PARAMETER)
    for tag in ("tool_call", "seed:tool_call")
)
QWEN_CODER_INTERRUPTS = ("<tool_call>\n<function=", "<seed:tool_call>")
GLM = (
    Calls(
        "$name$_$arguments", "<tool_call>", "$_", "</tool_call>", encloses_each=True,
        arguments=Tags("<arg_key>$key</arg_key>$_<arg_value>$value</arg_value>$_"),
    ),
)  # fmt: skip
MINICPM = (
    Calls(
        '$name">$_$arguments', '<function name="', "$_", "</function>", encloses_each=True,
        arguments=Tags('<param name="$key">$value</param>$_', quotes=("<![CDATA[", "]]>")),
    ),
)  # fmt: skip
MINIMAX = (
    Calls(
        '<invoke name="$name">$_$arguments</invoke>',
        "<minimax:tool_call>$_", "$_", "$_</minimax:tool_call>",
        arguments=Tags('<parameter name="$key">$value</parameter>$_'),
    ),
)  # fmt: skip
MUSE = (
    Calls(
        '<atem:invoke name="$name">$_$arguments</atem:invoke>',
        "<atem:function_calls>$_", "$_", "$_</atem:function_calls>",
        arguments=Tags('<atem:parameter name="$key">$value</atem:parameter>$_'),
    ),
)  # fmt: skip
NESTING = "]<]minimax[>["
MINIMAX_M3 = (
    Calls(
        f'{NESTING}<invoke name="$name">$_$arguments{NESTING}</invoke>',
        f"{NESTING}<tool_call>$_", "$_", f"$_{NESTING}</tool_call>",
        arguments=Tags(f"{NESTING}<$key>$value{NESTING}</$key>$_", nesting=NESTING),
    ),
)  # fmt: skip
HUNYUAN = (
    Calls(
        "<tool_call:opensource>$name<tool_sep:opensource>$_$arguments</tool_call:opensource>",
        "<tool_calls:opensource>$_", "$_", "$_</tool_calls:opensource>",
        arguments=Tags(
            "<arg_key:opensource>$key</arg_key:opensource>$_"
            "<arg_value:opensource>$value</arg_value:opensource>$_"
        ),
    ),
)  # fmt: skip
KIMI_K3 = tuple(
    Calls(
        f'<|open|>call tool="$name"{index}<|sep|>$_$arguments<|close|>call<|sep|>',
        "<|open|>tools<|sep|>$_", "$_", "$_<|close|>tools<|sep|>",
        arguments=Tags(
            '<|open|>argument key="$key" type="$type"<|sep|>$value<|close|>argument<|sep|>$_',
            json=('<|open|>json type="object"<|sep|>', "<|close|>json<|sep|>"),
        ),
        is_enforced=bool(index),
    )
    for index in (' index="$number"', "")
)  # fmt: skip
KIMI_K3_FRAMES = (
    "<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>",
)  # fmt: skip
DEEPSEEK_V32 = tuple(
    Calls(
        '<｜DSML｜invoke name="$name">$_$arguments</｜DSML｜invoke>',
        f"<｜DSML｜{tag}>$_", "$_", f"$_</｜DSML｜{tag}>",
        arguments=Tags(
            '<｜DSML｜parameter name="$key" string="$is_string">$value</｜DSML｜parameter>$_'
        ),
    )
    for tag in ("function_calls", "tool_calls")
)  # fmt: skip
