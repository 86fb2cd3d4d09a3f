"""Public surface for operators, read from the code: settings, files, commands and logs."""

import json
import logging
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from os import environ
from pathlib import Path
from typing import Any, Final

import click
from click.testing import CliRunner

from control_svc.config import ControlSettings
from control_svc.db.engine import FILE_NAME as DATABASE_FILE
from corral_cli.__main__ import cli
from gateway.config import GatewaySettings
from inference_svc.config import InferenceSettings
from svc_kit.logs import JsonFormatter
from svc_kit.settings.groups import ServiceSettings, default_data_dir
from svc_kit.settings.sources import read_environment

ROOT: Final = Path(__file__).resolve().parents[1]
SERVICES: Final = (InferenceSettings, ControlSettings, GatewaySettings)
CLI_USES: Final[tuple[list[str], ...]] = (
    [],
    ["--help"],
    ["version"],
    ["no-such-command"],
    ["version", "--no-such-option"],
    ["keys", "list", "--control", " "],
    ["keys", "list", "--control", "127.0.0.1:1"],
    ["batch", "run", "/absent.jsonl", "-o", "/absent"],
    ["import", "threads", "/absent"],
)


def settings(cls: type[ServiceSettings]) -> dict[str, Any]:
    """Settings of a service by their key in the TOML file, with schema and variables."""
    schema = cls.model_json_schema()
    rows = dict(_settings(inline_references(schema, schema.get("$defs", {})), ()))
    for key, value in rows.items():
        source = read_environment(
            cls, cls.env_prefix(), {cls.env_prefix() + key.replace(".", "__").upper(): "{}"}, []
        )
        value["environment"] = sorted(source.names.values())
    return rows


def inline_references(node: Any, definitions: dict[str, Any]) -> Any:
    """Replace references in a JSON schema by their definitions: class names are not public."""
    if isinstance(node, list):
        return [inline_references(each, definitions) for each in node]
    if not isinstance(node, dict):
        return node
    reference = definitions.get(str(node.get("$ref", "")).rpartition("/")[2], {})
    merged = reference | {key: value for key, value in node.items() if key not in ("$ref", "$defs")}
    return {key: inline_references(value, definitions) for key, value in merged.items()}


def _settings(node: Any, path: tuple[str, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every setting of a schema; a list or a map of groups is one setting."""
    if path:
        yield ".".join(path), {"schema": {k: v for k, v in node.items() if k != "properties"}}
    for name, value in node.get("properties", {}).items():
        yield from _settings(value, (*path, name))


def files() -> dict[str, Any]:
    """Default data folders, and names of files and folders in them."""
    homes: tuple[dict[str, str], ...] = ({"CORRAL_DATA_DIR": "/a"}, {"XDG_DATA_HOME": "/b"})
    below = re.compile(r'data_dir / "([^"]+)"')
    return {
        "data": [str(default_data_dir(home)) for home in homes],
        "database": DATABASE_FILE,
        "below_data": sorted({name for text in sources() for name in below.findall(text)}),
    }


def sources() -> Iterator[str]:
    """Yield the source text of every module of the services and of the CLI."""
    mains = {path.parent for path in ROOT.glob("*/__main__.py")}
    yield from (path.read_text("utf-8") for main in sorted(mains) for path in main.rglob("*.py"))


def commands(command: click.Command, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every command with its parameters, without what click derives from function names."""
    with click.Context(command) as context:
        info = command.to_info_dict(context)
        group = command if isinstance(command, click.Group) else click.Group()
        children = {each: group.get_command(context, each) for each in group.list_commands(context)}
    info["params"] = {param.opts[-1]: _parameter(param) for param in command.params}
    info.pop("commands", None)
    yield path, info
    for name, child in children.items():
        if child is not None:
            yield from commands(child, f"{path} {name}")


def _parameter(param: click.Parameter) -> dict[str, Any]:
    info = param.to_info_dict()
    if isinstance(param, click.Option):
        info.pop("name")  # the name of a Python argument
    info["type"].pop("param_type")  # the name of a class
    info["type"].pop("func", None)
    info["metavar"] = param.metavar
    if callable(param.default):
        info["default"] = "computed"
    return info


def exit_codes() -> dict[str, int]:
    """Exit codes of CLI calls, and of every program when a setting is invalid."""
    runner = CliRunner()
    codes = {" ".join(["corral", *uses]): runner.invoke(cli, uses).exit_code for uses in CLI_USES}
    invalid = {f"{cls.env_prefix()}NO_SUCH_SETTING": "1" for cls in SERVICES}
    for package in scripts()["packages"]:
        command = [sys.executable, "-m", package, "config", "check"]
        completed = subprocess.run(command, cwd=ROOT, env=environ | invalid, capture_output=True)
        codes[f"python -m {package}, wrong settings"] = completed.returncode
    return codes


def scripts() -> dict[str, Any]:
    """Console scripts, and packages that can be run with `python -m`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    packages = sorted(path.parent.name for path in ROOT.glob("*/__main__.py"))
    return {"console": sorted(project["scripts"]), "packages": packages}


def logs() -> dict[str, Any]:
    """Loggers with a name other than their module's, extra fields, and keys of a JSON log line."""
    line = JsonFormatter("x").format(logging.LogRecord("x", logging.INFO, "", 0, "x", None, None))
    named = re.compile(r'getLogger\("([^"]+)"')
    fields = re.compile(r'"fields": \{"(\w+)"')
    return {
        "loggers": sorted({name for text in sources() for name in named.findall(text)}),
        "fields": sorted({name for text in sources() for name in fields.findall(text)}),
        "keys": sorted(json.loads(line)),
    }
