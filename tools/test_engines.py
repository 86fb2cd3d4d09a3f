"""Runs the tests of tests/engines with real engines, for `make test-engines`.

llama-server is compiled from the source of the locked llama-cpp-python (bench/peers.sh), and vLLM
for the CPU is installed from requirements/engine-vllm.in into `.venv-engine-vllm`, and so are the
router SMG and agentic-api, unless CORRAL_LLAMA_SERVER (a program, or the URL of one that runs),
CORRAL_VLLM (a Python, or a URL), CORRAL_SMG and CORRAL_AGENTIC (programs) name others. One that
cannot be had is named, its tests are skipped, and the run fails. SGLang has no build for the CPU.
"""

import os
import subprocess
import sys
import venv
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from tests.support import agentic, smg
from tests.support.engine_servers import VARIABLES

ROOT: Final = Path(__file__).resolve().parent.parent
_HANGS_S: Final = 2400
"""Longer than the limits of these tests, in which vLLM starts for minutes on a busy machine."""


def main(arguments: list[str]) -> int:
    """Find the engines and run pytest with the arguments. Returns its exit code; 1 if an engine is
    missing."""
    found = {}
    for kind, variable in {**VARIABLES, **_OTHERS}.items():
        program = os.environ.get(variable) or _MAKERS[kind]()
        if program is None:
            print(f"MISSING {kind}: it cannot be installed here")
            continue
        found[variable] = program
        print(f"{kind}: {_version(kind, program)} ({program})", flush=True)
    limit = f"faulthandler_timeout={_HANGS_S}"
    command = [sys.executable, "-m", "pytest", "-q", "-o", limit, "tests/engines", *arguments]
    code = subprocess.run(command, cwd=ROOT, env=os.environ | found, check=False).returncode
    return code or int(len(found) < len(_MAKERS))


def _make_llama_server() -> str | None:
    ended = subprocess.run(
        ["bash", str(ROOT / "bench" / "peers.sh")], stdout=subprocess.PIPE, text=True, check=False
    )
    return f"{ended.stdout.strip()}/llama-server" if ended.returncode == 0 else None


def _install(name: str, program: str) -> str | None:
    """Install by name and version, and return a program: vLLM for the CPU requires a build of
    PyTorch that not every source of packages has, and packages for pictures and sounds that it does
    not need."""
    packages = ROOT / "requirements" / f"engine-{name}.in"
    excluded, folder = packages.with_suffix(".excludes"), ROOT / f".venv-engine-{name}"
    files = [packages, *([excluded] if excluded.is_file() else [])]
    stamp, wanted = folder / packages.name, "".join(path.read_text() for path in files)
    installed = str(folder / "bin" / program)
    if stamp.is_file() and stamp.read_text() == wanted:
        return installed
    venv.create(folder, clear=True)
    command = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet"]
    command += ["--python", str(folder / "bin" / "python"), "-r", str(packages)]
    command += [option for path in files[1:] for option in ("--excludes", str(path))]
    links = os.environ.get("PIP_FIND_LINKS", "")
    environment = {"UV_FIND_LINKS": ",".join(links.split()), **os.environ}
    if subprocess.run(command, env=environment, check=False).returncode != 0:
        return None
    stamp.write_text(wanted)
    return installed


def _version(kind: str, program: str) -> str:
    if program.startswith("http"):
        return "runs already"
    if kind == "vllm":
        name = "import vllm.version as v; print(v.__version__)"
        command = [program, "-c", name]
    else:
        command = [program, "--version"]
    ended = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    lines = [line for line in ended.stdout.splitlines() if line.strip()]
    return next((line for line in lines if "version" in line), lines[-1] if lines else "unknown")


_MAKERS: Final[dict[str, Callable[[], str | None]]] = {
    "llama_server": _make_llama_server,
    "vllm": partial(_install, "vllm", "python"),
    "smg": partial(_install, "smg", "smg"),
    "agentic": partial(_install, "agentic", "agentic-server"),
}
_OTHERS: Final = {"smg": smg.VARIABLE, "agentic": agentic.VARIABLE}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
