"""Two programs of others against a new server, for `make test-clients`.

A generator of clients reads the OpenAPI document; llmprobe tries what servers should do."""

import json
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final

from tools.corral_server import running_server

ROOT: Final = Path(__file__).resolve().parent.parent
PROGRAM: Final = Path(__file__).with_name("generated_client_program.py")
MODEL: Final = "demo-chat"
WARNINGS: Final = ["WARNING parsing GET /v1/messages/batches/{batch_id}/results within default."]
"""The generator does not know lines of JSON."""
TWO_BODIES: Final = "generated.api.default.create_adapter_v1_adapters_post"
"""It forgets an import where a body is a form or JSON."""
FOUND: Final = {
    "broken": [TWO_BODIES],
    "error": [404, "model_not_found"],
    "response": ["completed", "MessageItem"],
    "message": ["assistant", "end_turn"],
}
"""What the program finds, beside an answer and the models."""
SURFACES: Final = (
    *("models", "chat", "responses", "messages", "count-tokens", "embeddings", "completions"),
)
"""Routes that llmprobe requires and the bundled model can show."""


def run_generated_client(python: Path) -> int:
    """Generate a client, import all of it, and make requests with it. Returns the exit code.

    `python` has the packages of requirements/openapi-client.txt.
    """
    with tempfile.TemporaryDirectory() as folder:
        data_dir = Path(folder, "data")
        data_dir.mkdir()
        with running_server(data_dir) as base_url:
            url = base_url.removesuffix("/v1")
            generate = ["-m", "openapi_python_client", "generate", "--url", f"{url}/openapi.json"]
            generate += ["--meta", "none", "--output-path", str(Path(folder, "generated"))]
            config = Path(folder, "config.yml")
            config.write_text("literal_enums: true\n")  # some values differ only in their case
            generate += ["--config", str(config)]
            output = _run_python(python, generate)
            _run_python(python, [str(PROGRAM), folder, url, MODEL])
        found: dict[str, Any] = json.loads(Path(folder, "found.json").read_text())
    problems = re.findall("^(?:WARNING|Unable to process).*", output, re.MULTILINE)
    passed = (
        problems == WARNINGS
        and "Paris" in found.pop("answer")
        and MODEL in found.pop("models")
        and found == FOUND
    )
    print(f"{'passed' if passed else 'FAILED'} openapi-python-client: {problems} {found}")
    return 0 if passed else 1


def run_llmprobe() -> int:
    """Run llmprobe. Returns 0 if each requirement of its routes is met. Its questions for large
    models are not judged."""
    program = ROOT / "tests" / "outside" / "llmprobe" / "node_modules" / ".bin" / "llmprobe"
    with tempfile.TemporaryDirectory() as folder, running_server(Path(folder)) as base_url:
        report = Path(folder, "report.json")
        options = ["--model", MODEL, "--no-bench", "--no-save", "--no-color", "--save", str(report)]
        subprocess.run([str(program), base_url, *options], capture_output=True, check=False)
        found: dict[str, Any] = json.loads(report.read_text())
    tiers = {each["tier"]: each["missing"] for each in found["coverage"]["byTier"]}
    surfaces = {each["surface"]: each["pct"] for each in found["conformance"]["bySurface"]}
    passed = surfaces == dict.fromkeys(SURFACES, 100) and tiers["core"] == []
    print(f"{'passed' if passed else 'FAILED'} llmprobe: {surfaces} {tiers}")
    return 0 if passed else 1


def _run_python(python: Path, arguments: list[str]) -> str:
    """Run a program. Returns its output. Raises CalledProcessError."""
    programs = str(python.parent)  # of the formatter that the generator starts
    environment = {"PATH": programs + os.pathsep + os.environ["PATH"], "NO_PROXY": "*"}
    ended = subprocess.run(
        [python, *arguments], env=environment, capture_output=True, text=True, check=True
    )
    return ended.stdout + ended.stderr
