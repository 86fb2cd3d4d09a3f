"""Sources of settings: TOML file, environment, command line. Problems are reported under the name
that the setting has in its source.
"""

import difflib
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

TOML_TABLES: Final = ("inference", "control", "gateway")
"""The tables of a configuration file, one per service."""
_SHAPES: Final = {
    **dict.fromkeys(("model_type", "dict_type", "mapping_type"), "must be a table"),
    **dict.fromkeys(("tuple_type", "frozen_set_type"), "must be a list"),
    "path_type": "must be a path",
}
"""What a value must be, by Pydantic's types of errors, whose texts name types of Python."""
_COMMAND_VARIABLES: Final = frozenset(
    f"CORRAL_{name}"
    for name in (
        "API_KEY",
        "CA_FILE",
        "CERTIFICATE_FILE",
        "DATA_DIR",
        "KEY_FILE",
        "PROFILES",
        "SERVICE_TOKEN_FILE",
        "TARGET",
    )
)
"""Variables that belong to no service."""
_REPOSITORY_VARIABLES: Final = frozenset(
    f"CORRAL_{name}" for name in ("LLAMA_WHEEL", "LM_EVAL", "PEERS", "RECORD", "TRANSFORMERS")
)
"""Those of its recipes and tests, which start services too."""


@dataclass
class Source:
    """Nested values, and the name of each path in the source."""

    values: dict[str, Any] = field(default_factory=dict)
    names: dict[tuple[str, ...], str] = field(default_factory=dict)


def read_toml(table_name: str, path: Path | None, problems: list[str], shared: list[str]) -> Source:
    """Read the service's table of a configuration file; append what is wrong with the table to
    `problems`, and with the file to `shared`."""
    source = Source()
    if path is None:
        return source
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        shared.append(f"{path}: {reason}")
        return source
    shared += [
        f"{path}: unknown table [{name}]{_suggest(name, TOML_TABLES)}"
        for name in sorted(document.keys() - {*TOML_TABLES})
    ]
    table = document.get(table_name, {})
    if not isinstance(table, dict):
        problems.append(f"{path}: [{table_name}] must be a table")
        return source
    merge(source.values, table)
    _name_paths(source, table, (), f"{path}: [{table_name}] ")
    return source


def read_environment(
    cls: type[BaseModel], prefix: str, environment: Mapping[str, str], problems: list[str]
) -> Source:
    """Read the variables with the prefix; `__` separates a group from its setting.

    Empty variables are ignored, because Compose files pass unset variables as empty ones.
    """
    source = Source()
    # Sorted, so that GROUP__SETTING overrides GROUP.
    for name, text in sorted(environment.items()):
        if not (name.startswith(prefix) and text):
            continue
        path = tuple(name.removeprefix(prefix).lower().split("__"))
        annotation = _annotation_at(cls, path)
        if annotation is None:
            problems.append(f"{name}: unknown setting{_suggestion(cls, path)}")
            continue
        try:
            value = _decode(text, annotation)
        except ValueError as error:
            problems.append(f"{name}: {error}")
            continue
        merge(source.values, _nested(path, value))
        source.names[path] = name
    return source


def read_overrides(overrides: Mapping[str, Any]) -> Source:
    """Name the overrides after their command-line options."""
    source = Source()
    for key, value in overrides.items():
        path = tuple(key.split("."))
        merge(source.values, _nested(path, value))
        source.names[path] = "--" + "-".join(path).replace("_", "-")
    return source


def _nested(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    for key in reversed(path):
        value = {key: value}
    return dict(value)


def merge(target: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Merge `more` into `target`; lists and scalars are replaced."""
    for key, value in more.items():
        if not isinstance(value, Mapping):
            target[key] = value
            continue
        if not isinstance(target.get(key), dict):
            target[key] = {}
        merge(target[key], value)


def _name_paths(
    source: Source, table: Mapping[str, Any], path: tuple[str, ...], prefix: str
) -> None:
    for key, value in table.items():
        source.names[(*path, key)] = prefix + ".".join((*path, key))
        if isinstance(value, dict):
            _name_paths(source, value, (*path, key), prefix)


def _annotation_at(cls: type[BaseModel], path: tuple[str, ...]) -> Any:
    """The type of the setting at a path; None if there is no such setting."""
    field = cls.model_fields.get(path[0])
    if field is None or len(path) == 1:
        return field and field.annotation
    group = group_type(field.annotation)
    return group and _annotation_at(group, path[1:])


def group_type(annotation: Any) -> type[BaseModel] | None:
    """The settings group of a field's type, also if it is optional; None for other types."""
    for option in _options(annotation):
        if isinstance(option, type) and issubclass(option, BaseModel):
            return option
    return None


def is_optional(annotation: Any) -> bool:
    """Whether a setting can be unset."""
    return NoneType in _options(annotation)


def _options(annotation: Any) -> tuple[Any, ...]:
    is_union = get_origin(annotation) in (Union, UnionType)
    return get_args(annotation) if is_union else (annotation,)


def _decode(text: str, annotation: Any) -> Any:
    """Decode a variable: JSON for groups, lists and tables; a list may also be a,b,c."""
    if text == "none" and is_optional(annotation):
        return text
    containers = [get_origin(option) or option for option in _options(annotation)]
    is_list = any(container in (list, tuple, set, frozenset) for container in containers)
    if not (is_list or dict in containers or group_type(annotation)):
        return text
    if is_list and not text.lstrip().startswith("["):
        return [item.strip() for item in text.split(",") if item.strip()]
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error}") from None


def describe_problems(
    cls: type[BaseModel], error: ValidationError, sources: Sequence[Source]
) -> Iterator[str]:
    """Yield a line for each problem with the merged values."""
    for problem in error.errors(include_url=False, include_input=False, include_context=False):
        path = tuple(str(part) for part in problem["loc"])
        message = _SHAPES.get(problem["type"], problem["msg"].removeprefix("Value error, "))
        if problem["type"] == "extra_forbidden":
            message = f"unknown setting{_suggestion(cls, path)}"
        where = _origin(path, sources)
        yield f"{where}: {message}" if where else message


def _origin(path: tuple[str, ...], sources: Sequence[Source]) -> str:
    """The name of a setting in the source of its effective value."""
    for length in range(len(path), 0, -1):
        for source in reversed(sources):
            name = source.names.get(path[:length])
            if name is not None:
                return ".".join((name, *path[length:]))
    return ".".join(path)


def _suggestion(cls: type[BaseModel], path: tuple[str, ...]) -> str:
    group: type[BaseModel] | None = cls
    for key in path[:-1]:
        field = group.model_fields.get(key) if group else None
        group = group_type(field.annotation) if field else None
    return _suggest(path[-1], group.model_fields if group else ())


def _suggest(name: str, names: Iterable[str], cutoff: float = 0.6) -> str:
    close = difflib.get_close_matches(name, list(names), n=1, cutoff=cutoff)
    return f" (did you mean {close[0]}?)" if close else ""


def find_unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Variables that begin with CORRAL_ and are those of no service and no command."""
    prefixes = tuple(f"CORRAL_{table.upper()}_" for table in TOML_TABLES)
    return [
        f"{name}: unknown variable{_suggest(name, _COMMAND_VARIABLES, 0.9)}; settings begin with"
        f" {', '.join(prefixes)}"
        for name, text in sorted(environment.items())
        if text
        and name.startswith("CORRAL_")
        and name not in _COMMAND_VARIABLES | _REPOSITORY_VARIABLES
        and not name.startswith(prefixes)
    ]
