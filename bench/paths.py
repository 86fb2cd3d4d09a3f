"""Paths of the peers, of generated models, and of files in the repository."""

import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
SCHEMAS = sorted((REPOSITORY / "bench/schemas").glob("*.json"))
BUNDLED_MODEL = REPOSITORY / "inference_svc/models/bundled/demo-chat-q8_0.gguf"
BUNDLED_DRAFT = BUNDLED_MODEL.with_name("demo-draft-q8_0.gguf")


def cache_folder() -> Path:
    """Return the folder of generated models."""
    return Path.home() / ".cache/corral-bench"


def build_peers() -> Path:
    """Return the folder of the peers' programs, after compiling them (minutes) if necessary."""
    script = REPOSITORY / "bench/peers.sh"
    built = subprocess.run([str(script)], check=True, stdout=subprocess.PIPE, text=True)
    return Path(built.stdout.splitlines()[-1])


def vocabulary_file(peers: Path) -> Path:
    """Return the qwen2 vocabulary in the source tree that the peers were built from.

    Raises FileNotFoundError if the programs were installed without their source.
    """
    pattern = "llama_cpp_python-*/vendor/llama.cpp/models/ggml-vocab-qwen2.gguf"
    for path in peers.resolve().parent.parent.glob(pattern):
        return path
    raise FileNotFoundError(f"no {pattern} beside {peers}; build the peers with bench/peers.sh")
