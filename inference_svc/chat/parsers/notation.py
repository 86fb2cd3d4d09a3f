"""How calls are written, as examples with placeholders: grammars write these texts, readers read
them (`call_reader.py`). `families.py` has the examples.

    Calls("<tool_call>$name$_$arguments</tool_call>")

`$name`, `$arguments`, `$id` and `$number` stand for what differs from call to call, `$_` for white
space that the model chooses.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from inference_svc.structured_output.spec import ID, NUMBER, SPACE, ArgumentSyntax, ToolCallSyntax

_PART = re.compile(r'(\$\w+|\{".*\})|\n|(?<=```)')
_MARKER = re.compile(r"<[^<>$\s]*>|\[[A-Z_]+\]")
_TYPES = ("string", "number", "boolean", "null", "object", "array")


@dataclass(frozen=True)
class Tags:
    """Arguments with a tag for each, as "<parameter=$key>$value</parameter>$_"; in the place of
    `$type` is the JSON type of the value, in that of `$is_string` "true" or "false"."""

    argument: str
    padded: bool = False
    """Values may be enclosed in line breaks."""
    quotes: tuple[str, str] | None = None
    """The texts around a value that may contain the text that ends values."""
    nesting: str = ""
    """What is before the tags inside a value."""
    json: tuple[str, str] = ("", "")
    """The texts around all arguments as JSON, which may be in the place of tags."""

    @cached_property
    def begin(self) -> str:
        """The text before a key."""
        return self.argument.split("$key", 1)[0]

    @cached_property
    def key_ends(self) -> tuple[str, ...]:
        """What may follow a key. If there are several, the first one marks the value as a
        string."""
        text = self._behind_key.partition("$_")[0]
        if "$type" in text:
            return tuple(text.replace("$type", name) for name in _TYPES)
        if "$is_string" in text:
            bare = re.sub(r' \w+="\$is_string"', "", text)
            return *(text.replace("$is_string", each) for each in ("true", "false")), bare
        return (text,)

    @cached_property
    def value(self) -> str:
        """The text before a value, if white space may be between it and that behind the key."""
        return self._behind_key.partition("$_")[2]

    @cached_property
    def value_end(self) -> str:
        """The text behind a value, which may contain `$key`."""
        return self.argument.split("$value")[1].removesuffix("$_")

    @property
    def _behind_key(self) -> str:
        return self.argument.split("$value")[0].split("$key", 1)[1]

    def syntax(self, call_end: str) -> ArgumentSyntax:
        """The syntax of arguments that are followed by this text."""
        key_end = self._behind_key.replace("$type", "{type}").replace("$is_string", "{is_string}")
        return ArgumentSyntax(
            begin=self.begin,
            key_end=_filled(key_end),
            end=self.value_end.replace("$key", "{key}") + SPACE,
            quotes=(self.quotes,) if self.quotes else (),
            may_quote=self.quotes is not None,
            excludes=(f"{self.nesting}<",) if self.nesting else (self.begin, call_end),
            padded=self.padded,
            words={"true": "True", "false": "False", "null": "None"},
            item=(f"{self.nesting}<item>", f"{self.nesting}</item>{SPACE}")
            if self.nesting
            else None,
        )


@dataclass(frozen=True)
class Calls:
    """One notation of calls: `call`, between `before` and `after`.

    JSON objects are examples too, `{"name": "$name", "arguments": $arguments}`; their keys are read
    in any order. They are in a list if `before` ends with its bracket.
    """

    call: str
    before: str = ""
    between: str = ""
    after: str = ""
    encloses_each: bool = False
    """`before` and `after` are around each call, instead of all of them."""
    arguments: Tags | ArgumentSyntax | None = None
    """None: a JSON object. Of an `ArgumentSyntax` only grammars are made."""
    variants: tuple[str, ...] = ()
    """Other texts that are read as the beginning."""
    id: str = ""
    """What `$id` is, if it has the name in it, as "functions.$name:$number"."""
    id_length: int = 0
    """Ids that are not so many letters and digits are replaced; 0: none is."""
    only_offered: bool = False
    """Names of other tools than those that are offered begin no call."""
    is_enforced: bool = True
    """Whether grammars have it; otherwise it is only read."""

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """The texts and placeholders of a call before the arguments, or the object."""
        return _parts(self.call.split("$arguments")[0] if not self.is_object else "")

    @property
    def is_object(self) -> bool:
        """Whether a call is a JSON object."""
        return self.call.startswith("{")

    @property
    def is_list(self) -> bool:
        """Whether calls are in a JSON list."""
        return self.before.rstrip().endswith("[")

    @cached_property
    def ends(self) -> tuple[str, ...]:
        tail = () if self.is_object else _parts(self.call.split("$arguments")[1])
        return tail or self.section_ends

    @cached_property
    def section_ends(self) -> tuple[str, ...]:
        """The texts that end all calls."""
        return _parts(self.after.strip("\n]") if self.is_list else self.after)

    @cached_property
    def opening(self) -> str:
        """The text before all calls, without the bracket of a list."""
        return "".join(_parts(self.before)).removesuffix("[" if self.is_list else "")

    @cached_property
    def begins(self) -> tuple[str, ...]:
        """The texts with which calls begin; the last one is that of a call, if it has one."""
        first = self.parts[:1] if self.parts and not self.parts[0].startswith("$") else ()
        return (*filter(None, (self.opening,)), *self.variants, *first)

    @cached_property
    def markers(self) -> tuple[str, ...]:
        """The texts that must be visible, even if they are control tokens."""
        if isinstance(self.arguments, Tags):
            return (self.opening, *self.ends, *self.section_ends)
        return tuple(_MARKER.findall(self.before + self.call + self.after))

    @cached_property
    def syntax(self) -> ToolCallSyntax:
        """The syntax for grammars."""
        call, before, after = self.call, self.before, self.after
        if self.encloses_each:
            call, before, after = before + call + after, "", ""
        head, rest = _filled(call.replace("$id", self.id or "$id")).split("$name")
        middle, tail = rest.split("$arguments")
        before, between, after = map(_filled, (before, self.between, after))
        arguments = self.arguments
        if isinstance(arguments, Tags):
            arguments = arguments.syntax(self.ends[0])
        return ToolCallSyntax(head, middle, tail, before, between, after, arguments)


def begins(notations: Iterable[Calls]) -> tuple[str, ...]:
    """The texts with which calls in one of these notations begin; of those that begin alike, the
    shortest."""
    texts = dict.fromkeys(text for notation in notations for text in notation.begins)
    longer = {text for text in texts for each in texts if text != each and text.startswith(each)}
    return tuple(text for text in texts if text not in longer)


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part for part in _PART.split(text) if part and part.strip() and part != "$_")


def _filled(text: str) -> str:
    return text.replace("$_", SPACE).replace("$number", NUMBER).replace("$id", ID)
