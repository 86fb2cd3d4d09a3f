"""How the reader of a hint can call this command: it may stand in a virtual environment."""

import shutil
import sys
from pathlib import Path


def command_name() -> str:
    """`corral` where the shell finds it, else its path, short where it is below this folder."""
    program = Path(sys.argv[0])
    found = shutil.which("corral")
    if program.name != "corral" or (found and Path(found).resolve() == program.resolve()):
        return "corral"
    try:
        return str(program.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(program)
