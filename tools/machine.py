"""Check the prerequisites that `make` cannot install: Python, compilers, disk space, free ports.

Each problem is one line that names the remedy; all problems are reported together.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from tools.llama_wheel import PREBUILT_VARIABLE

OLDEST_PYTHON = (3, 11)
SECOND_CORRAL = (
    "--port 8090 --inference-listen 127.0.0.1:50151 --control-listen 127.0.0.1:50152"
    " --data-dir $HOME/corral-2"
)
"""Options for a second Corral on the same machine; the user's shell expands $HOME."""
DISK_BYTES = 2_000_000_000  # .venv takes 0.6 GB; the build of llama.cpp and the downloads the rest


def find_problems(root: Path, up_arguments: list[str] | None) -> list[str]:
    """All problems of this machine. `up_arguments` are those of `corral up`, if it runs next."""
    addresses = [] if up_arguments is None else listen_addresses(up_arguments)
    return missing_tools() + missing_disk(root) + taken_ports(addresses)


def missing_tools() -> list[str]:
    """One line for each missing program or header, with the command that installs it."""
    problems = []
    version = ".".join(map(str, sys.version_info[:2]))
    if sys.version_info[:2] < OLDEST_PYTHON:
        problems.append(
            f"Python 3.11 or newer is needed, this is {version}: install one (apt-get install"
            " python3.11) and run make with PYTHON=python3.11"
        )
    elif not can_import("venv") or not can_import("ensurepip"):
        problems.append("Python's venv module is missing: apt-get install python3-venv")
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        problems.append("Python's headers (Python.h) are missing: apt-get install python3-dev")
    if shutil.which("make") is None:
        problems.append("make is missing: apt-get install make")
    if os.environ.get(PREBUILT_VARIABLE):
        return problems  # nothing is compiled
    if not compiles("c++", ["CXX", "c++", "g++", "clang++"], "#include <vector>"):
        problems.append("a C++ compiler is missing: apt-get install g++")
    if not compiles("c", ["CC", "cc", "gcc", "clang"], "#include <stdio.h>"):
        problems.append("a C compiler is missing: apt-get install gcc libc6-dev")
    return problems


def can_import(module: str) -> bool:
    """Import the module in a new interpreter: some distributions ship an incomplete `venv`."""
    command = [sys.executable, "-c", f"import {module}"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def compiles(language: str, names: list[str], include: str) -> bool:
    """Compile and link a two-line program: a compiler may lack its headers or its library."""
    candidates = [os.environ.get(names[0], ""), *names[1:]]
    compilers = [path for path in map(shutil.which, filter(None, candidates)) if path]
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "probe", Path(folder) / "probe.out"
        source.write_text(f"{include}\nint main() {{ return 0; }}\n")
        command = ["-x", language, str(source), "-o", str(program)]
        return any(
            subprocess.run([compiler, *command], capture_output=True, check=False).returncode == 0
            for compiler in compilers
        )


def missing_disk(root: Path) -> list[str]:
    """One line for each folder without enough space for .venv or the build of llama.cpp."""
    problems = []
    for folder in sorted({str(root), tempfile.gettempdir()}):
        free = shutil.disk_usage(folder).free
        if free < DISK_BYTES:
            problems.append(
                f"{DISK_BYTES / 1e9:.0f} GB of disk are needed in {folder}, {free / 1e9:.1f} GB"
                " are free: make room there (TMPDIR chooses another folder for the build)"
            )
    return problems


def listen_addresses(up_arguments: list[str]) -> list[str]:
    """Addresses that `corral up` will listen on, from its flags and the environment."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--listen", default=os.environ.get("CORRAL_GATEWAY_LISTEN"))
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", default="8080")
    parser.add_argument(
        "--inference-listen",
        default=os.environ.get("CORRAL_INFERENCE_LISTEN") or "127.0.0.1:50051",
    )
    parser.add_argument(
        "--control-listen",
        default=os.environ.get("CORRAL_CONTROL_LISTEN") or "127.0.0.1:50052",
    )
    parser.add_argument("--config")
    known = parser.parse_known_args(up_arguments)[0]
    if known.config:
        return []  # the file may set other addresses; `corral up` checks them before it starts
    gateway = known.listen or f"{known.host}:{known.port}"
    return [gateway, known.inference_listen, known.control_listen]


def taken_ports(addresses: list[str]) -> list[str]:
    """One line for each address that cannot be bound."""
    problems = []
    for address in addresses:
        host, _, port = address.rpartition(":")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host.strip("[]"), int(port)))
            except (OSError, ValueError, OverflowError) as error:
                problems.append(
                    f"cannot listen on {address} ({getattr(error, 'strerror', None) or error}):"
                    " stop what runs there, or choose other ports and a folder with"
                    f' make run ARGS="{SECOND_CORRAL}"'
                )
    return problems
