"""The sandbox job that validates an adapter's file."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from model_files import adapter_file
from model_files.adapter_file import AdapterMismatch, describe_adapter
from model_files.gguf import ModelFileInvalid
from svc_kit.sandbox.jobs import JobRefused


def check_adapter(payload: dict[str, Any]) -> dict[str, Any]:
    """Check the file "adapter" against the model whose files are "model" (absolute paths).

    The result has the fields of `AdapterDescription`, or "mismatch" alone: what differs.

    Raises:
        JobRefused: the file is damaged, or no adapter that can be applied.
    """
    try:
        model_paths = [Path(path) for path in payload["model"]]
        return asdict(describe_adapter(Path(payload["adapter"]), model_paths))
    except AdapterMismatch as mismatch:
        return {"mismatch": str(mismatch)}
    except ModelFileInvalid as invalid:
        raise JobRefused(invalid.problem) from None


def read_adapter(payload: dict[str, Any]) -> dict[str, Any]:
    """Check the file "adapter" (an absolute path) by itself.

    The result has the fields of `AdapterFacts`.

    Raises:
        JobRefused: the file is damaged, or no adapter that can be applied.
    """
    try:
        return asdict(adapter_file.read_adapter(Path(payload["adapter"])))
    except ModelFileInvalid as invalid:
        raise JobRefused(invalid.problem) from None
