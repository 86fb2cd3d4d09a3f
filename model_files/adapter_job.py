"""The sandbox jobs that validate adapter files."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from model_files import adapter_file
from model_files.adapter_file import AdapterMismatch, describe_adapter
from model_files.gguf import ModelFileInvalid
from svc_kit.sandbox.jobs import JobRefused


def check_adapter(payload: dict[str, Any]) -> dict[str, Any]:
    """Validate the file "adapter" against the files "model" (absolute paths).

    The result has the fields of `AdapterFacts`, or only "mismatch" with the difference.

    Raises:
        JobRefused: the file is damaged, or not a supported adapter.
    """
    try:
        model_paths = [Path(path) for path in payload["model"]]
        return asdict(describe_adapter(Path(payload["adapter"]), model_paths))
    except AdapterMismatch as mismatch:
        return {"mismatch": str(mismatch)}
    except ModelFileInvalid as invalid:
        raise JobRefused(invalid.problem) from None


def read_adapter(payload: dict[str, Any]) -> dict[str, Any]:
    """Validate the file "adapter" (an absolute path) without its model.

    The result has the fields of `AdapterFacts`.

    Raises:
        JobRefused: the file is damaged, or not a supported adapter.
    """
    try:
        return asdict(adapter_file.read_adapter(Path(payload["adapter"])))
    except ModelFileInvalid as invalid:
        raise JobRefused(invalid.problem) from None
