"""Settings as the text of a TOML file."""

import json
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from pydantic import BaseModel

from svc_kit.settings.groups import ServiceSettings


def settings_toml(settings: ServiceSettings) -> str:
    """Render settings as TOML, with secrets hidden."""
    return "\n".join(_toml_lines(settings, settings.toml_table)) + "\n"


def _toml_lines(group: BaseModel, table: str) -> Iterator[str]:
    yield f"[{table}]"
    values = {name: getattr(group, name) for name in type(group).model_fields}
    for name, value in values.items():
        if not isinstance(value, BaseModel):
            yield f"{name} = {_toml_value(value)}"
    for name, value in values.items():
        if isinstance(value, BaseModel):
            yield ""
            yield from _toml_lines(value, f"{table}.{name}")


def _toml_key(name: str) -> str:
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)


def _toml_value(value: Any) -> str:
    if isinstance(value, BaseModel):
        value = {name: getattr(value, name) for name in type(value).model_fields}
    if isinstance(value, Mapping):
        pairs = [f"{_toml_key(name)} = {_toml_value(v)}" for name, v in value.items()]
        return "{ " + ", ".join(pairs) + " }"
    if isinstance(value, set | frozenset):
        value = sorted(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    return json.dumps("none" if value is None else str(value), ensure_ascii=False)
