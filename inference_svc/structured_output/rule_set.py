"""Collects the rules of a grammar and the grammars of JSON values that they refer to."""

import json
import re
from typing import Any

import orjson

write_text = json.JSONEncoder(ensure_ascii=False, default=lambda number: [str(number)]).encode
"""Writes a text as Lark and JSON do, and a schema with all digits of its numbers."""
_REFERENCE = re.compile(r'("\$ref": "#)(?=[/"])')
"""Begins one by place; those by `$anchor` resolve wherever they are."""
_OTHER_REFERENCE = re.compile(r'"\$ref": "#(?!/(\$defs|definitions)/)')


def schema_key(schema: Any) -> str:
    """The text under which a schema is found: equal ones have equal texts."""
    try:
        return orjson.dumps(schema).decode()
    except orjson.JSONEncodeError:  # a Decimal, a large number, or a text that is no Unicode
        return write_text(schema)


class RuleSet:
    """Names rules by their content, so that equal ones are shared."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self.lines: dict[str, None] = {}
        """The rules, in order."""
        self.schemas: dict[str, tuple[dict[str, Any], bool]] = {}
        """The schemas of JSON values, and whether they are strict, by the names of grammars."""

    def __contains__(self, content: str) -> bool:
        return content in self._names

    def name(self, content: str) -> str:
        return self._names.setdefault(content, f"argument_{len(self._names)}")

    def add(self, line: str) -> None:
        """Add a line, unless there is an equal one."""
        self.lines[line] = None

    def rule(self, body: str) -> str:
        """Add a rule; returns its name."""
        name = self.name(body)
        self.add(f"{name}: {body}")
        return name

    def terminal(self, body: str) -> str:
        """Add a terminal; returns its name."""
        name = self.name(f"TERMINAL {body}").upper()
        self.add(f"{name}: {body}")
        return name

    def json(self, schema: dict[str, Any], root: dict[str, Any], *, strict: bool) -> str:
        """Add a JSON value whose references are those of a document; returns its rule's name."""
        key = schema_key(schema)
        if "$ref" in key and schema is not root:
            schema = _with_root(write_text(schema), root)
            key = schema_key(schema)
        name = self.name(f"json {strict} {key}")
        self.schemas[f"{name}_json"] = (schema, strict)
        self.add(f"{name}: @{name}_json")
        return name


def _with_root(text: str, root: dict[str, Any]) -> dict[str, Any]:
    """A part of a document as a document in which its references still resolve."""
    whole = write_text(root)
    if not _OTHER_REFERENCE.search(whole):
        shared = {key: value for key, value in root.items() if key in ("$defs", "definitions")}
        return {**shared, **json.loads(text)}
    moved = r"\1/$defs/root"
    part, inner = (json.loads(_REFERENCE.sub(moved, each)) for each in (text, whole))
    return {**part, "$defs": {"root": inner}}
