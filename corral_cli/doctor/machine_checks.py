"""Checks of the machine: Python, llama.cpp, processor, locale, clock, limits of the process."""

import locale
import os
import platform
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution, requires, version
from pathlib import Path

from corral_cli.doctor.findings import Finding, error, ok, warning
from inference_svc.machine import available_cores, cpu_flags, missing_cpu_features

_LLAMA = "llama-cpp-python"
_SYSTEM_INFO = "from inference_svc.llama import library; print(library.system_info())"
_TIMEOUT_S = 60.0
_FEW_FILES, _MANY_FILES = 1024, 4096
_SHARED_MEMORY_BYTES = 64 << 20


def check_machine() -> Iterator[Finding]:
    """Check what does not depend on the settings."""
    yield ok("python", f"{platform.python_version()} in {sys.prefix}")
    yield check_llama()
    yield check_locale()
    yield check_clock(time.time(), Path(__file__).stat().st_mtime)
    yield check_open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield check_shared_memory(Path("/dev/shm"))  # noqa: S108  (looked at, not written)


def check_llama() -> Finding:
    """Load llama.cpp in a child process: a build for another processor kills its process."""
    needed = [text for text in requires("corral") or [] if text.startswith(_LLAMA)]
    try:
        installed = version(_LLAMA)
    except PackageNotFoundError:
        compiler = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
        remedy = f"pip install '{needed[0]}'" if needed else f"pip install {_LLAMA}"
        missing = "" if compiler else ", and no C++ compiler is found to compile it"
        return error("llama.cpp", f"{_LLAMA} is not installed{missing}", remedy)
    if needed and needed[0].partition("==")[2] not in ("", installed):
        remedy = f"pip install '{needed[0]}'"
        return error("llama.cpp", f"version {installed} is installed, not {needed[0]}", remedy)
    command = [sys.executable, "-P", "-c", _SYSTEM_INFO]
    remedy = "install llama-cpp-python again on this machine, or a build with GGML_NATIVE=OFF"
    try:
        child = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return error("llama.cpp", f"it does not load within {_TIMEOUT_S:.0f} s", remedy)
    if child.returncode != 0:
        reason = (child.stderr.strip().splitlines() or [f"exit code {child.returncode}"])[-1]
        return error("llama.cpp", f"it does not load: {reason}", remedy)
    if missing_features := missing_cpu_features(child.stdout, cpu_flags()):
        names = ", ".join(missing_features)
        return error("llama.cpp", f"compiled with {names}, which this processor lacks", remedy)
    return ok("llama.cpp", f"{installed} at {location(_LLAMA)}, {available_cores()} cores")


def location(name: str) -> Path:
    """The folder of an installed distribution."""
    return Path(str(distribution(name).locate_file("")))


def check_locale() -> Finding:
    """A locale that is not installed makes every program fall back to ASCII."""
    try:
        name = locale.setlocale(locale.LC_CTYPE, "")
    except locale.Error:
        problem = "that of LC_ALL, LC_CTYPE or LANG is not installed"
        return warning("locale", problem, "set LANG=C.UTF-8")
    if sys.getfilesystemencoding() != "utf-8":
        return error("locale", f"file names are {sys.getfilesystemencoding()}", "set LANG=C.UTF-8")
    return ok("locale", f"{name}, file names in UTF-8")


def check_clock(now: float, installed: float) -> Finding:
    """Keys, certificates and ids depend on the time."""
    text = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < installed - 86_400:
        return error("clock", f"{text} is before the installation of Corral", "set the clock (NTP)")
    return ok("clock", text)


def check_open_files(limit: int) -> Finding:
    """Each connection and each file in use is one."""
    message = f"{limit} may be open"
    remedy = "raise it: ulimit -n 65536, or LimitNOFILE= of systemd"
    if limit < _FEW_FILES:
        return error("open files", message, remedy)
    return (
        warning("open files", message, remedy) if limit < _MANY_FILES else ok("open files", message)
    )


def check_shared_memory(folder: Path) -> Finding:
    """CUDA and multithreaded libraries use it."""
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        return warning("shared memory", f"{folder} cannot be written", "mount a tmpfs there")
    free = shutil.disk_usage(folder).free
    message = f"{free >> 20} MiB are free in {folder}"
    if free < _SHARED_MEMORY_BYTES:
        return warning("shared memory", message, "in a container: --shm-size 1g")
    return ok("shared memory", message)
