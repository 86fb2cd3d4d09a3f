"""The surface for operators and scripts, read from the code: settings, files, commands, logs."""

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
    ["keys", "list", "--target", " "],
    ["keys", "list", "--target", "127.0.0.1:1"],
    ["batch", "run", "/absent.jsonl", "-o", "/absent"],
    ["import", "threads", "/absent"],
)


def settings(cls: type[ServiceSettings]) -> dict[str, Any]:
    """Settings of a service with types and defaults, under their keys in the file."""
    schema = cls.model_json_schema()
    found = dict(_settings(inline(schema, schema.get("$defs", {})), ()))
    for key, value in found.items():
        source = read_environment(
            cls, cls.env_prefix(), {cls.env_prefix() + key.replace(".", "__").upper(): "{}"}, []
        )
        value["environment"] = sorted(source.names.values())
    return found


def inline(node: Any, definitions: dict[str, Any]) -> Any:
    """A JSON schema with definitions in place of references: names of classes are no surface."""
    if isinstance(node, list):
        return [inline(each, definitions) for each in node]
    if not isinstance(node, dict):
        return node
    reference = definitions.get(str(node.get("$ref", "")).rpartition("/")[2], {})
    merged = reference | {key: value for key, value in node.items() if key not in ("$ref", "$defs")}
    return {key: inline(value, definitions) for key, value in merged.items()}


def _settings(node: Any, path: tuple[str, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every setting of a schema; a list or a map of groups is one setting."""
    if path:
        yield ".".join(path), {"schema": {k: v for k, v in node.items() if k != "properties"}}
    for name, value in node.get("properties", {}).items():
        yield from _settings(value, (*path, name))


def files() -> dict[str, Any]:
    """Folders and files that are found by default."""
    homes: tuple[dict[str, str], ...] = ({"CORRAL_DATA_DIR": "/a"}, {"XDG_DATA_HOME": "/b"})
    below = re.compile(r'data_dir / "([^"]+)"')
    return {
        "data": [str(default_data_dir(home)) for home in homes],
        "database": DATABASE_FILE,
        "below_data": sorted({name for text in sources() for name in below.findall(text)}),
    }


def sources() -> Iterator[str]:
    """The texts of the modules of the services and the command."""
    mains = {path.parent for path in ROOT.glob("*/__main__.py")}
    yield from (path.read_text("utf-8") for main in sorted(mains) for path in main.rglob("*.py"))


def commands(command: click.Command, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every command with its parameters, without what click derives from our functions."""
    with click.Context(command) as context:
        found = command.to_info_dict(context)
    found["params"] = {param.opts[-1]: _parameter(param) for param in command.params}
    found.pop("commands", None)
    yield path, found
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from commands(child, f"{path} {name}")


def _parameter(param: click.Parameter) -> dict[str, Any]:
    found = param.to_info_dict()
    if isinstance(param, click.Option):
        found.pop("name")  # of our function's argument
    found["type"].pop("param_type")  # the name of a class
    found["type"].pop("func", None)
    found["metavar"] = param.metavar
    if callable(param.default):
        found["default"] = "computed"
    return found


def exit_codes() -> dict[str, int]:
    """Exit codes of the command, and of every program with settings that are wrong."""
    runner = CliRunner()
    found = {" ".join(["corral", *uses]): runner.invoke(cli, uses).exit_code for uses in CLI_USES}
    wrong = {f"{cls.env_prefix()}NO_SUCH_SETTING": "1" for cls in SERVICES}
    for package in scripts()["packages"]:
        command = [sys.executable, "-m", package, "config", "check"]
        ended = subprocess.run(command, cwd=ROOT, env=environ | wrong, capture_output=True)
        found[f"python -m {package}, wrong settings"] = ended.returncode
    return found


def scripts() -> dict[str, Any]:
    """Console scripts, and packages that `python -m` runs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    packages = sorted(path.parent.name for path in ROOT.glob("*/__main__.py"))
    return {"console": sorted(project["scripts"]), "packages": packages}


def logs() -> dict[str, Any]:
    """Loggers not called by their module, and the keys of a line."""
    line = JsonFormatter("x").format(logging.LogRecord("x", logging.INFO, "", 0, "x", None, None))
    named = re.compile(r'getLogger\("([^"]+)"')
    fields = re.compile(r'"fields": \{"(\w+)"')
    return {
        "loggers": sorted({name for text in sources() for name in named.findall(text)}),
        "fields": sorted({name for text in sources() for name in fields.findall(text)}),
        "keys": sorted(json.loads(line)),
    }
