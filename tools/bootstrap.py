"""Creates the virtual environment for all other recipes, on a machine that has only Python.

`python3 -m tools.bootstrap runtime|dev|bench|mutants` checks the prerequisites, installs the hashed
lock files into `.venv` in stages, and writes a stamp, so that the next run returns immediately. It
uses only the standard library and old syntax, so that an old Python prints a message instead of a
SyntaxError.

`demo-model` fills `.venv-demo-model` with the packages that train the bundled model: PyTorch is
larger than everything else together and needed only for that training.

llama.cpp is compiled for this processor, or taken from `CORRAL_LLAMA_WHEEL`. Its wheel is cached
here (`llama_wheel`), because pip's cache does not distinguish builds with other CMake arguments or
for other processors.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tools import llama_wheel, machine

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
DEMO_MODEL_VENV = ROOT / ".venv-demo-model"
LOG = ROOT / "bootstrap.log"
_DEV = ["build", "runtime", "dev", "weights", "sdk-1.109.1", "sdk-2.54.0"]
LEVELS = {  # each includes the level above it
    "runtime": ["build", "runtime"],
    "dev": _DEV,
    "bench": [*_DEV, "bench"],
    "mutants": [*_DEV, "bench", "mutants"],
}
DEMO_MODEL = "demo-model"  # the level of the other environment
CUDA_ONLY = ("torch==", "triton==", "cuda-", "nvidia-")
# Settings of pip's sources are kept. Other PIP_ variables are removed: PIP_TARGET, PIP_USER or
# PIP_REQUIRE_VIRTUALENV would install elsewhere, or fail.
PIP_SOURCES = {
    "PIP_CACHE_DIR",
    "PIP_CERT",
    "PIP_CLIENT_CERT",
    "PIP_CONFIG_FILE",
    "PIP_DEFAULT_TIMEOUT",
    "PIP_EXTRA_INDEX_URL",
    "PIP_FIND_LINKS",
    "PIP_INDEX_URL",
    "PIP_KEYRING_PROVIDER",
    "PIP_NO_CACHE_DIR",
    "PIP_NO_INDEX",
    "PIP_PROXY",
    "PIP_RETRIES",
    "PIP_TIMEOUT",
    "PIP_TRUSTED_HOST",
}


def main() -> int:
    """Parse the command line, install what is missing and return the exit code."""
    # The other arguments, also --help, are those of `corral up`.
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("level", choices=[*LEVELS, DEMO_MODEL], help="which lock files to install")
    parser.add_argument("--for-up", action="store_true", help="check the ports of corral up too")
    options, up_arguments = parser.parse_known_args()
    use_right_python()
    if is_stamped(options.level):
        return 0
    problems = machine.find_problems(ROOT, up_arguments if options.for_up else None)
    if problems:
        print("Corral cannot be installed yet:", file=sys.stderr)
        for problem in problems:
            print(f"  - {problem}", file=sys.stderr)
        return 1
    try:
        if options.level == DEMO_MODEL:
            Installation().run_demo_model()
        else:
            Installation().run(options.level)
    except llama_wheel.WheelRefused as refusal:
        wheel = os.environ[llama_wheel.PREBUILT_VARIABLE]
        remedy = "Name another one, or unset the variable to compile llama.cpp."
        message = f"{llama_wheel.PREBUILT_VARIABLE}={wheel} cannot be used: {refusal}. {remedy}"
        print(message, file=sys.stderr)
        return 1
    except StageFailed as failure:
        print("\n".join(LOG.read_text(errors="replace").splitlines()[-40:]), file=sys.stderr)
        print(f"Failed while {failure}. The whole log: {LOG}", file=sys.stderr)
        return 1
    return 0


def use_right_python() -> None:
    """Restart with the Python that created `.venv`, or with a newer one if this one is too old."""
    again = ["-m", "tools.bootstrap", *sys.argv[1:]]
    if Path(sys.prefix) in {VENV, DEMO_MODEL_VENV}:  # activated: it cannot recreate itself
        base = getattr(sys, "_base_executable", sys.executable)
        os.execv(base, [base, *again])  # noqa: S606  (this program, by full path)
    if sys.version_info[:2] >= machine.OLDEST_PYTHON:
        return
    for minor in range(14, machine.OLDEST_PYTHON[1] - 1, -1):
        newer = shutil.which(f"python3.{minor}")
        if newer:
            os.execv(newer, [newer, *again])  # noqa: S606  (this program, with a newer Python)


# ------------------------------------------------------------------------------------------ install


class StageFailed(Exception):
    """A stage failed; the log has its output. The message describes the stage."""


class Installation:
    """One run of the stages, reported with the time since its start."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.cmake_arguments = cmake_arguments()
        LOG.write_bytes(b"")

    def run(self, level: str) -> None:
        """Install the level into `.venv` and write the stamp. Raises StageFailed."""
        self.create_venv(VENV)
        self.stage("installing the build tools", [*pip("install"), *locked("build")])
        llama, others = split_lock()
        self.stage("installing the run-time packages", [*pip("install"), *locked(others)])
        self.install_llama(llama)
        for name in LEVELS[level][2:]:
            command = [*pip("install"), *separate_target(name), *locked(name)]
            self.stage(f"installing the packages of {name}.txt", command)
        editable = ["--no-deps", "--no-build-isolation", "--editable", "."]
        self.stage("installing Corral", [*pip("install"), *editable])
        stamp_path(level).write_text(fingerprint(level))
        self.report("installed in .venv")

    def run_demo_model(self) -> None:
        """Install into `.venv-demo-model` and write the stamp. Raises StageFailed."""
        self.create_venv(DEMO_MODEL_VENV)
        install = pip("install", DEMO_MODEL_VENV)
        if has_gpu() or not self.install_cpu_torch(install):
            title = "installing PyTorch with CUDA (several GB on Linux)"
            self.stage(title, [*install, *locked(DEMO_MODEL)])
        else:
            others = split_demo_model_lock()
            self.stage("installing the packages of demo-model.txt", [*install, *locked(others)])
        stamp_path(DEMO_MODEL).write_text(fingerprint(DEMO_MODEL))
        self.report(f"installed in {DEMO_MODEL_VENV.name}")

    def install_cpu_torch(self, install: list[str]) -> bool:
        """Install PyTorch without CUDA. Returns False if pip's sources do not have that build."""
        try:
            self.stage("installing PyTorch for the CPU", [*install, *locked(f"{DEMO_MODEL}-cpu")])
        except StageFailed:
            if "No matching distribution found" not in LOG.read_text(errors="replace"):
                raise
            self.report("    pip finds no such build for this machine")
            return False
        return True

    def create_venv(self, venv: Path) -> None:
        """Create a virtual environment, unless it exists."""
        if not venv_works(venv):
            command = [sys.executable, "-m", "venv", "--clear", str(venv)]
            self.stage(f"making {venv.name}", command)

    def install_llama(self, lock: Path) -> None:
        """Install the wheel of llama-cpp-python. Raises StageFailed and WheelRefused."""
        prebuilt = llama_wheel.prebuilt_wheel(lock.read_text(), python(VENV))
        if prebuilt is not None:
            key, wheel = llama_wheel.file_key(prebuilt), prebuilt
        else:
            key = llama_wheel.build_key(lock.read_text(), self.cmake_arguments)
            wheel = self.cached_wheel(lock, key)
        (VENV / ".corral-llama-wheel").write_text(f"{wheel}\n")  # for deploy/build.sh
        stamp = VENV / ".corral-llama"
        if stamp.is_file() and stamp.read_text() == key:
            return
        stamp.unlink(missing_ok=True)
        install = [*pip("install"), "--no-deps", "--no-index", "--force-reinstall", str(wheel)]
        self.stage("installing llama-cpp-python", install)
        if prebuilt is not None and (missing := llama_wheel.lacking_features(python(VENV), ROOT)):
            names = ", ".join(missing)
            raise llama_wheel.WheelRefused(f"it needs {names}, which this processor lacks")
        self.try_llama(wheel, is_cached=prebuilt is None)
        stamp.write_text(key)

    def cached_wheel(self, lock: Path, key: str) -> Path:
        """Return the wheel of this key from the cache; compile it if it is not there."""
        folder = llama_wheel.cache_folder() / key
        if not list(folder.glob("*.whl")):
            # Renamed when complete, so that an interrupted build leaves no partial cache entry.
            building = folder.with_suffix(f".{os.getpid()}")
            build = [*pip("wheel"), "--verbose", "--no-cache-dir", "--wheel-dir", str(building)]
            title = "compiling llama.cpp for this machine"
            self.stage(title, build + locked(lock), llama_wheel.BuildProgress(LOG))
            shutil.rmtree(folder, ignore_errors=True)
            building.rename(folder)
        return next(folder.glob("*.whl"))

    def try_llama(self, wheel: Path, *, is_cached: bool) -> None:
        """Generate some tokens. Raises StageFailed, or WheelRefused for a prebuilt wheel."""
        try:
            trial = [str(python(VENV)), "-c", llama_wheel.TRIAL]
            self.stage("trying llama.cpp on this processor", trial)
        except StageFailed as failure:
            if not is_cached:
                reason = LOG.read_text(errors="replace").strip().splitlines()[-1]
                raise llama_wheel.WheelRefused(f"a trial failed ({reason})") from failure
            shutil.rmtree(wheel.parent)
            remedy = "say make CMAKE_ARGS=-DGGML_NATIVE=OFF ... to compile it for any processor"
            raise StageFailed(f"{failure}; {remedy}") from failure

    def stage(
        self, title: str, command: list[str], progress: Callable[[], str] | None = None
    ) -> None:
        """Run a command with its output in the log, and report while it is running.

        `progress` describes what it has done so far. Raises StageFailed.
        """
        self.report(title)
        finished = threading.Event()
        reporter = threading.Thread(target=self.follow, args=(title, progress, finished))
        reporter.start()
        try:
            with LOG.open("ab") as log:
                log.write(("\n$ " + " ".join(command) + "\n").encode())
                log.flush()
                arguments = llama_wheel.build_arguments(self.cmake_arguments)
                result = subprocess.run(
                    command,
                    cwd=ROOT,
                    env={**environment(), "CMAKE_ARGS": arguments},
                    stdout=log,
                    stderr=log,
                    check=False,
                )
        finally:
            finished.set()
            reporter.join()
        if result.returncode != 0:
            raise StageFailed(title)

    def follow(
        self, title: str, progress: Callable[[], str] | None, finished: threading.Event
    ) -> None:
        """Report until `finished`: each second in one line of a terminal, else every 30 seconds."""
        is_line = progress is not None and sys.stdout.isatty()
        while not finished.wait(1 if is_line else 30):
            done = progress() if progress else ""
            if is_line:
                print(f"\r\033[K{self.clock()} {title}: {done}", end="", flush=True)
            else:
                self.report(f"    {done or f'still {title}'}; details are in {LOG.name}")
        if is_line:
            print("\r\033[K", end="", flush=True)

    def clock(self) -> str:
        """The time since the start."""
        minutes, seconds = divmod(int(time.monotonic() - self.started), 60)
        return f"[{minutes}:{seconds:02}]"

    def report(self, text: str) -> None:
        """Print a progress line with the time since the start."""
        print(f"{self.clock()} {text}", flush=True)


def python(venv: Path) -> Path:
    """The interpreter of a virtual environment."""
    return venv / "bin" / "python"


def pip(command: str, venv: Path = VENV) -> list[str]:
    """The pip of a virtual environment with a subcommand."""
    return [str(python(venv)), "-m", "pip", "--no-input", command]


def separate_target(name: str) -> list[str]:
    """Return the arguments that install an older release of the SDK into its own folder."""
    return ["--upgrade", "--target", str(VENV / "sdks" / name)] if name.startswith("sdk-") else []


def locked(lock: str | Path) -> list[str]:
    """Return the arguments that install exactly the packages of a lock file.

    Build isolation would download the newest build tools; those here are locked too.
    """
    path = ROOT / "requirements" / f"{lock}.txt" if isinstance(lock, str) else lock
    return ["--no-deps", "--no-build-isolation", "--require-hashes", "-r", str(path)]


def split_lock() -> tuple[Path, Path]:
    """Split the run-time lock into two files in `.venv`: llama-cpp-python, and all others."""
    entries = lock_entries("runtime")
    llama, others = VENV / "llama.lock", VENV / "others.lock"
    llama.write_text("".join(each for each in entries if each.startswith(f"{llama_wheel.LLAMA}==")))
    others.write_text(
        "".join(each for each in entries if not each.startswith(f"{llama_wheel.LLAMA}=="))
    )
    return llama, others


def split_demo_model_lock(folder: Path = DEMO_MODEL_VENV) -> Path:
    """Write the demo model's lock without PyTorch and packages for CUDA to `folder`."""
    others = folder / "others.lock"
    kept = [each for each in lock_entries(DEMO_MODEL) if not each.startswith(CUDA_ONLY)]
    others.write_text("".join(kept))
    return others


def lock_entries(name: str) -> list[str]:
    """Split a lock file into one entry per package."""
    return re.split(r"(?m)^(?=[^\s#])", (ROOT / "requirements" / f"{name}.txt").read_text())


def has_gpu() -> bool:
    """Whether the machine has an NVIDIA GPU."""
    return shutil.which("nvidia-smi") is not None


def cmake_arguments() -> str:
    """Return the CMake arguments for this processor and compiler, followed by the user's."""
    script = ["bash", str(ROOT / "tools" / "cmake_args.sh")]
    detected = subprocess.run(script, stdout=subprocess.PIPE, text=True, check=False).stdout
    return " ".join(filter(None, [detected.strip(), os.environ.get("CMAKE_ARGS", "").strip()]))


def venv_works(venv: Path) -> bool:
    """Whether it was created in this folder with this Python, and is complete."""
    if not python(venv).exists():
        return False
    probe = "import sys, pip; print(sys.prefix, *sys.version_info[:2], sep=chr(10))"
    result = subprocess.run(
        [str(python(venv)), "-c", probe],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=False,
        env=environment(),
    )
    return result.stdout.splitlines() == [str(venv), *map(str, sys.version_info[:2])]


def environment() -> dict[str, str]:
    """Return the environment without variables that would change what pip or Python do."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
        and (not name.startswith("PIP_") or name in PIP_SOURCES)
    }
    # These override pip's configuration file.
    kept.update(PIP_USER="0", PIP_REQUIRE_VIRTUALENV="0", PIP_DISABLE_PIP_VERSION_CHECK="1")
    return kept


# -------------------------------------------------------------------------------------------- stamp


def is_stamped(level: str) -> bool:
    """Whether an earlier run installed exactly these locks, for this level or a larger one."""
    levels = [level] if level == DEMO_MODEL else list(LEVELS)[list(LEVELS).index(level) :]
    return venv_works(venv_for(level)) and any(
        stamp_path(one).is_file() and stamp_path(one).read_text() == fingerprint(one)
        for one in levels
    )


def venv_for(level: str) -> Path:
    """Return the virtual environment of a level."""
    return DEMO_MODEL_VENV if level == DEMO_MODEL else VENV


def stamp_path(level: str) -> Path:
    """Return the file that records what a virtual environment contains."""
    return venv_for(level) / f".corral-{level}"


def fingerprint(level: str) -> str:
    """Return a digest of everything that affects the content of an installation."""
    digest = hashlib.sha256()
    names = [DEMO_MODEL, f"{DEMO_MODEL}-cpu"] if level == DEMO_MODEL else LEVELS[level]
    files = [ROOT / "requirements" / f"{name}.txt" for name in names]
    for path in [*files, ROOT / "pyproject.toml", Path(__file__), llama_wheel.BUILD]:
        digest.update(path.read_bytes())
    for variable in ("CMAKE_ARGS", llama_wheel.PREBUILT_VARIABLE):
        digest.update(os.environ.get(variable, "").encode() + b"\0")
    digest.update(str(level == DEMO_MODEL and has_gpu()).encode())
    return digest.hexdigest()


if __name__ == "__main__":
    sys.exit(main())
