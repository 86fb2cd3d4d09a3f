"""The wheel of llama-cpp-python: its cache, how it is compiled, and whether a given one fits.

`CORRAL_LLAMA_WHEEL` names a prebuilt wheel. It is refused with the reason if its version, platform
or processor is not that of this installation. Like `bootstrap`, this module needs only Python.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
import subprocess
import time
from pathlib import Path

LLAMA = "llama-cpp-python"
BUILD = Path(__file__).with_name("llama_build.cmake")
PREBUILT_VARIABLE = "CORRAL_LLAMA_WHEEL"
NAME = re.compile(r"llama_cpp_python-([^-+]+)(?:\+[^-]+)?(?:-\d[^-]*)?-[^-]+-[^-]+-([^-]+)\.whl")
# Detects a build with instructions that this processor does not support.
TRIAL = """
import llama_cpp
from inference_svc.llama import library
library.load_backends()
model = llama_cpp.Llama("inference_svc/models/bundled/demo-chat-q8_0.gguf", n_ctx=256)
model("Once upon a time", max_tokens=4)
"""
LACKING_FEATURES = """
from inference_svc.llama import library
from inference_svc.machine import cpu_flags, missing_cpu_features
print(*missing_cpu_features(library.system_info(), cpu_flags()))
"""
IS_SUPPORTED = """
import sys
from packaging.tags import sys_tags
from packaging.utils import parse_wheel_filename
sys.exit(parse_wheel_filename(sys.argv[1])[3].isdisjoint(sys_tags()))
"""


class WheelRefused(Exception):
    """The wheel of CORRAL_LLAMA_WHEEL does not fit; the message is the reason."""


def prebuilt_wheel(lock: str, interpreter: Path) -> Path | None:
    """Return the wheel of CORRAL_LLAMA_WHEEL, None if it is unset. Raises WheelRefused.

    `interpreter` is that of the virtual environment, which has `packaging`.
    """
    text = os.environ.get(PREBUILT_VARIABLE)
    if not text:
        return None
    path, match = Path(text).expanduser(), NAME.fullmatch(Path(text).name)
    if not path.is_file():
        raise WheelRefused("there is no such file")
    if match is None:
        raise WheelRefused(f"its name is not that of a wheel of {LLAMA}")
    needed = re.findall(f"(?m)^{LLAMA}==([^ ]+)", lock)
    if [match[1]] != needed:
        raise WheelRefused(f"it is version {match[1]}, this Corral needs {' '.join(needed)}")
    check = [str(interpreter), "-c", IS_SUPPORTED, path.name]
    if subprocess.run(check, check=False).returncode != 0:
        machine = f"{platform.system()} on {platform.machine()}".lower()
        raise WheelRefused(f"it is for {match[2]}, this Python runs on {machine}")
    return path.resolve()


def lacking_features(interpreter: Path, root: Path) -> list[str]:
    """CPU features of the installed build that this processor lacks; none if it does not start."""
    command = [str(interpreter), "-c", LACKING_FEATURES]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return result.stdout.split()


def cpu_flags() -> str:
    """The features of this processor as Linux names them; empty on other systems."""
    cpu = Path("/proc/cpuinfo")
    found = re.search(r"(?m)^(flags|Features)\s*:.*$", cpu.read_text() if cpu.exists() else "")
    return found.group(0) if found else ""


def build_arguments(arguments: str) -> str:
    """The value of CMAKE_ARGS: the given arguments, and those that leave out what is not used."""
    return f"{arguments} {shlex.quote(f'-DCMAKE_PROJECT_INCLUDE={BUILD}')}".strip()


def build_key(lock: str, arguments: str) -> str:
    """Return a digest of everything that affects the build: version, arguments, machine."""
    machine = [platform.machine(), *platform.libc_ver(), cpu_flags() or platform.processor()]
    parts = [lock, arguments, BUILD.read_text(), *machine]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def file_key(wheel: Path) -> str:
    """Return a digest of a prebuilt wheel."""
    return hashlib.sha256(wheel.read_bytes()).hexdigest()[:16]


def cache_folder() -> Path:
    """Return the folder that caches compiled wheels for all clones on this machine."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(base) / "corral" / "wheels"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class BuildProgress:
    """What a build that writes to a log has done, from the lines of ninja: [34/83] Building ..."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._first: tuple[float, int] | None = None  # when files were first counted

    def __call__(self) -> str:
        """Describe the progress; empty before the first file."""
        counts = re.findall(rb"(?m)^ *\[(\d+)/(\d+)\] ", self._log.read_bytes())
        if not counts:
            return ""
        done, total = map(int, counts[-1])
        now = time.monotonic()
        self._first = self._first or (now, done)
        elapsed, files = now - self._first[0], done - self._first[1]
        text = f"{done} of {total} files"
        if not files:
            return text
        minutes, seconds = divmod(int(elapsed / files * (total - done)), 60)
        return f"{text}, about {minutes}:{seconds:02} left"
