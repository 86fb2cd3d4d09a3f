"""Grammars in the notations of engines."""

import json
import re
from collections.abc import Sequence
from typing import Any, Final

from inference_svc.structured_output.derivative import gbnf_text

_PART: Final = re.compile(r'"(?:[^"\\\n]|\\.)*"|/(?:[^/\\\n]|\\.)*/|@([A-Za-z0-9_]+)')
"""A string, a regular expression, or a reference to another grammar of a document."""


def single_lark(document: str) -> str:
    """Turn a document of llguidance, a first grammar that refers to others by name, into one
    grammar in Lark, since engines take no other."""
    first, *others = json.loads(document)["grammars"]
    if not others:
        return first["lark_grammar"] if "lark_grammar" in first else f"start: {_inline(first)}"
    names = {each["name"] for each in others if "name" in each}

    def refer(match: re.Match[str]) -> str:
        name = match[1]
        return f"part_{name}" if name in names else match[0]

    rules = [f"part_{each['name']}: {_inline(each)}" for each in others if "name" in each]
    return "\n".join([_PART.sub(refer, first["lark_grammar"]), *rules])


def _inline(grammar: dict[str, Any]) -> str:
    if "json_schema" in grammar:
        return f"%json {json.dumps(grammar['json_schema'])}"
    return f"%lark {{\n{grammar['lark_grammar']}\n}}"


def gbnf_choices(choices: Sequence[str]) -> str:
    """The GBNF grammar of one of several texts."""
    return "root ::= " + " | ".join(gbnf_text(each) for each in choices)
