"""Render docs/reference/configuration.md from the settings classes."""

import json
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel, create_model
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from corral_cli.serve import SERVICES, settings_class
from svc_kit.settings.docstrings import field_docstrings
from svc_kit.settings.groups import ServiceSettings

HEAD = """\
# Configuration

Generated from the settings classes by `make docs`; do not edit.

Each service reads, later ones winning: the defaults below, its table in the TOML file of
`--config`, environment variables, flags. A name with dots is in a table of the file
(`[inference.engine]`) and has two underscores in a variable (`CORRAL_INFERENCE_ENGINE__SLOTS=8`).
Lists are JSON in a variable. Unknown names are refused. `corral config check` prints the result.

`CORRAL_DATA_DIR` sets the data folder; without it that is `$XDG_DATA_HOME/corral` or
`~/.local/share/corral`. `CORRAL_API_KEY` is the key that `corral chat` sends.
"""
COMPUTED_DEFAULTS = {"data_dir": "see above"}


def render() -> str:
    """Return the page as Markdown."""
    return "\n".join([HEAD, *(_service(settings_class(name)) for name in SERVICES)])


def _service(cls: type[ServiceSettings]) -> str:
    rows = [
        f"| `{name}` | {_kind(field)} | {_default(name, field)} | {description} |"
        for name, field, description in _fields(cls, "")
    ]
    title = f"## [{cls.toml_table}], environment prefix `{cls.env_prefix()}`"
    return "\n".join(
        [title, "", "| name | kind | default | meaning |", "|---|---|---|---|", *rows, ""]
    )


def _fields(cls: type[BaseModel], prefix: str) -> Iterator[tuple[str, FieldInfo, str]]:
    """Yield every setting with its full name and description; settings of a group follow the
    group's own row."""
    docstrings = dict(field_docstrings(cls))
    for name, field in cls.model_fields.items():
        group = _group(field)
        if group is None or field.default is None:
            yield prefix + name, field, _describe(docstrings.get(name, ""))
        if group is not None:
            yield from _fields(group, f"{prefix}{name}{_separator(field)}")


def _group(field: FieldInfo) -> type[BaseModel] | None:
    """Settings class of a group, a list of groups or a map of groups; None for a plain setting."""
    for candidate in (field.annotation, *get_args(field.annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def _is_list(field: FieldInfo) -> bool:
    return str(field.annotation).startswith(("list[", "tuple["))


def _is_map(field: FieldInfo) -> bool:
    return str(field.annotation).startswith("dict[")


def _separator(field: FieldInfo) -> str:
    """Separator between the name of a group and the names of its settings."""
    if _is_map(field):
        return ".NAME."
    return "[]." if _is_list(field) else "."


def _kind(field: FieldInfo) -> str:
    """Describe the type of a setting and its bounds."""
    if _group(field) is not None:
        return "list of tables" if _is_list(field) else "table"
    schema, definitions = _schema(field)
    options = [
        definitions.get(each.get("$ref", "").rpartition("/")[2], each)
        for each in schema.get("anyOf", [schema])
        if each.get("type") != "null"
    ]
    return " or ".join(_describe_schema(option) for option in options)


def _describe_schema(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_describe_schema(schema.get('items', {}))}"
    if schema.get("format") in ("path", "file-path"):
        return "path"
    names = {"integer": "integer", "number": "number", "boolean": "true or false"}
    bounds = [
        f"{sign} {schema[key]:,}"
        for key, sign in (
            ("minimum", "≥"),
            ("exclusiveMinimum", ">"),
            ("maximum", "≤"),
        )
        if key in schema
    ]
    return " ".join([names.get(schema.get("type", ""), "text"), *bounds])


def _schema(field: FieldInfo) -> tuple[dict[str, Any], dict[str, Any]]:
    """JSON Schema of one setting, and its definitions.

    The schema has the bounds in one form, whether they come from `Field` or from the annotation.
    """
    definitions: Any = {"value": (field.annotation, field)}
    model = create_model("One", **definitions)
    schema = model.model_json_schema()
    return dict(schema["properties"]["value"]), dict(schema.get("$defs", {}))


def _default(name: str, field: FieldInfo) -> str:
    last = name.rpartition(".")[2]
    if last in COMPUTED_DEFAULTS and field.default_factory is not None:
        return COMPUTED_DEFAULTS[last]
    if field.default is PydanticUndefined:
        return "required"
    if field.default is None:
        return "unset"
    value = sorted(field.default) if isinstance(field.default, frozenset) else field.default
    return f"`{json.dumps(value, default=str)}`"


def _describe(docstring: str) -> str:
    return " ".join(docstring.split()).replace("|", "\\|")
