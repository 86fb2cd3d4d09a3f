"""Where the benchmark finds the peers and its own models, which the repository does not hold, and
what it does hold."""

import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
SCHEMAS = sorted((REPOSITORY / "bench/schemas").glob("*.json"))
BUNDLED_MODEL = REPOSITORY / "inference_svc/models/bundled/demo-chat-q8_0.gguf"


def cache_folder() -> Path:
    """Folder of the models made here."""
    return Path.home() / ".cache/corral-bench"


def build_peers() -> Path:
    """Return the folder of the peers' programs, compiling them (minutes) where they are missing."""
    script = REPOSITORY / "bench/peers.sh"
    built = subprocess.run([str(script)], check=True, stdout=subprocess.PIPE, text=True)
    return Path(built.stdout.splitlines()[-1])


def vocabulary_file(peers: Path) -> Path:
    """Return the qwen2 vocabulary in the source tree that the peers were built from.

    Raises FileNotFoundError where the programs came without their source.
    """
    pattern = "llama_cpp_python-*/vendor/llama.cpp/models/ggml-vocab-qwen2.gguf"
    for found in peers.resolve().parent.parent.glob(pattern):
        return found
    raise FileNotFoundError(f"no {pattern} beside {peers}; build the peers with bench/peers.sh")
