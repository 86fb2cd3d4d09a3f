"""Describes the machine: processor, versions, and load."""

import datetime
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from bench.paths import REPOSITORY


def describe_machine() -> dict[str, Any]:
    """Return the description stored with each record."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit.stdout.strip(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "gpus": _gpus(),
        "system": platform.system(),
        "python": platform.python_version(),
        "llama_cpp_python": metadata.version("llama-cpp-python"),
        "load_before": round(os.getloadavg()[0], 2),
    }


def _gpus() -> list[str]:
    """The names of NVIDIA's GPUs."""
    query = ("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return []


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
