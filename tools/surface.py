"""Writes what clients, operators and scripts depend on, and compares two such files.

    python -m tools.surface write FILE.json
    python -m tools.surface compare OLD.json NEW.json     exit code 1 where they differ

Covered: the OpenAPI document, descriptors and scopes of the RPCs, errors, settings, metrics, and
the command line. Prose (descriptions, help texts, messages) is left out.
"""

import argparse
import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
from corral.control.v1 import file_service_pb2
from google.protobuf import descriptor_pb2
from pydantic import BaseModel

from control_svc.config import ControlSettings
from corral_cli.__main__ import cli
from gateway.app import BODIES
from gateway.config import GatewaySettings
from inference_svc.config import InferenceSettings
from svc_kit.auth.scopes import METHOD_SCOPES
from svc_kit.errors import ERROR_CLASSES
from svc_kit.errors.status import row_of

ROOT: Final = Path(__file__).resolve().parents[1]
PROSE: Final = frozenset({"title", "description", "summary"})
SETTINGS: Final[dict[str, type[BaseModel]]] = {
    "control": ControlSettings,
    "gateway": GatewaySettings,
    "inference": InferenceSettings,
}
SERVICES: Final = ("control_svc", "gateway", "inference_svc", "svc_kit")


def surface() -> dict[str, Any]:
    """The public surface of the code, as JSON types."""
    return {
        "bodies": {body.__name__: without_prose(body.model_json_schema()) for body in BODIES},
        "commands": dict(commands(cli, "corral")),
        "descriptors": descriptors(),
        "errors": {cls.reason: error(cls) for cls in ERROR_CLASSES},
        "metrics": metrics(),
        "routes": routes(),
        "scopes": {method: str(scope) for method, scope in METHOD_SCOPES.items()},
        "settings": {
            name: without_prose(cls.model_json_schema()) for name, cls in SETTINGS.items()
        },
    }


def without_prose(node: Any) -> Any:
    """A JSON schema without titles and descriptions; a property may be called so."""
    if isinstance(node, list):
        return [without_prose(each) for each in node]
    if not isinstance(node, dict):
        return node
    return {
        key: without_prose(value)
        for key, value in node.items()
        if not (key in PROSE and isinstance(value, str))
    }


def error(cls: Any) -> list[str]:
    """The kind, the statuses and the metadata of an error."""
    return [cls.__mro__[1].__name__, str(row_of(cls)), *sorted(cls.__annotations__)]


def descriptors() -> dict[str, Any]:
    """Every proto file, without comments."""
    pool = file_service_pb2.DESCRIPTOR.pool
    found = {}
    for path in sorted((ROOT / "gen").rglob("*_pb2.py")):
        importlib.import_module(
            path.relative_to(ROOT / "gen").with_suffix("").as_posix().replace("/", ".")
        )
        name = path.relative_to(ROOT / "gen").as_posix().replace("_pb2.py", ".proto")
        message = descriptor_pb2.FileDescriptorProto()
        pool.FindFileByName(name).CopyToProto(message)
        found[name] = message.SerializeToString(deterministic=True).hex()
    return found


def commands(command: click.Command, path: str) -> Iterator[tuple[str, list[str]]]:
    """Every command with its parameters."""
    yield path, [parameter(each) for each in command.params]
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from commands(child, f"{path} {name}")


def parameter(param: click.Parameter) -> str:
    """A parameter without its help."""
    default = "computed" if callable(param.default) else param.default
    flags = f"required={param.required} multiple={param.multiple} nargs={param.nargs}"
    return f"{param.opts} {param.secondary_opts} {param.type.name} {flags} default={default}"


def metrics() -> list[str]:
    """The names of metrics in the sources."""
    texts = (
        path.read_text(encoding="utf-8")
        for name in SERVICES
        for path in (ROOT / name).rglob("*.py")
    )
    return sorted({name for text in texts for name in re.findall(r'"(corral_[a-z0-9_]+)"', text)})


def routes() -> list[str]:
    """Methods, paths and parameters of the HTTP routes, as they stand in the sources."""
    pattern = re.compile(r'@router\.(\w+)\(\s*"([^"]*)"')
    prefix = re.compile(r'prefix="([^"]*)"')
    found = []
    for path in sorted((ROOT / "gateway/routes").rglob("*.py")):
        for router in path.read_text(encoding="utf-8").split("APIRouter(")[1:]:
            start = prefix.match(router)
            base = start[1] if start else ""
            found += [f"{method.upper()} {base}{tail}" for method, tail in pattern.findall(router)]
    return sorted(found)


def differences(old: Any, new: Any, path: str = "") -> Iterator[str]:
    """Where two surfaces differ, a line each."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from differences(old.get(key), new.get(key), f"{path}/{key}")
    elif isinstance(old, list) and isinstance(new, list) and old != new:
        gone, added = [x for x in old if x not in new], [x for x in new if x not in old]
        yield f"{path}: only before {gone}, only now {added}"
    elif old != new:
        yield f"{path}: {str(old)[:200]} -> {str(new)[:200]}"


def main() -> int:
    """Write or compare; returns the exit code."""
    parser = argparse.ArgumentParser(description="Compare what clients and operators depend on.")
    parser.add_argument("action", choices=["write", "compare"])
    parser.add_argument("files", nargs="+", type=Path)
    options = parser.parse_args()
    if options.action == "write":
        options.files[0].write_text(json.dumps(surface(), indent=1, sort_keys=True))
        return 0
    old, new = (json.loads(path.read_text()) for path in options.files)
    found = list(differences(old, new))
    print("\n".join(found) or "no difference")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
