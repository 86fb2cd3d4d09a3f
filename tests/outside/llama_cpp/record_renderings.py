"""Record what llama-server and transformers render: digests of each template and conversation.

`python -m tests.outside.llama_cpp.record_renderings` after an update of llama.cpp or a change of
`conversations.py`. CORRAL_PEERS names the folder of llama-server (`bench/peers.sh`),
CORRAL_TRANSFORMERS the Python that has transformers (`make test-clients`). Takes half a minute.
"""

import json
import os
import subprocess
import tempfile
from copy import deepcopy
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import httpx
import jinja2

from bench.servers import free_ports
from inference_svc.models.sources import BUNDLED_PATH
from tests.outside.llama_cpp.conversations import CONVERSATIONS
from tests.outside.llama_cpp.source import llama_cpp_source
from tests.support.processes import Program
from tools.json_lines import layout

REFERENCES: Final = Path(__file__).with_name("renderings.json")
REFUSED: Final = "refused"
PROGRAM: Final = Path(__file__).with_name("transformers_program.py")
BOS, EOS = "<|endoftext|>", "<|im_end|>"
"""Those of the bundled model, which llama-server is started with."""


def templates() -> dict[str, str]:
    folder = llama_cpp_source() / "models" / "templates"
    return {path.stem: path.read_text() for path in sorted(folder.glob("*.jinja"))}


def digest(text: str) -> str:
    """What is recorded of a rendering: half of the hexadecimal digits of its SHA-256."""
    return sha256(text.encode()).hexdigest()[:32]


def _llama_server(name: str, conversations: dict[str, dict[str, Any]]) -> list[str | None]:
    (port,) = free_ports(1)
    template = llama_cpp_source() / "models" / "templates" / f"{name}.jinja"
    command: list[str | Path] = [
        *(Path(os.environ["CORRAL_PEERS"]) / "llama-server", "--model", BUNDLED_PATH, "--jinja"),
        *("--chat-template-file", template, "--no-prefill-assistant", "--ctx-size", "512"),
        *("--host", "127.0.0.1", "--port", str(port), "--parallel", "1", "--no-warmup"),
    ]
    with (
        tempfile.TemporaryDirectory() as folder,
        Program(command, environment={}, directory=Path(folder)) as program,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as server,
    ):
        program.wait_for_line(r"listening on http")
        answers = [server.post("/apply-template", json=each) for each in conversations.values()]
    return [answer.json().get("prompt") for answer in answers]


def _transformers(sources: dict[str, str], job: dict[str, Any]) -> dict[str, list[str | None]]:
    """Run `apply_chat_template` without a model; its Python gets this one's jinja2."""
    with tempfile.TemporaryDirectory() as folder:
        for each in Path(jinja2.__file__).parent.parent.iterdir():
            if each.name.startswith(("jinja2", "markupsafe", "MarkupSafe")):
                (Path(folder) / each.name).symlink_to(each)
        ended = subprocess.run(
            [os.environ["CORRAL_TRANSFORMERS"], str(PROGRAM)],
            input=json.dumps({**job, "templates": sources}),
            env={**os.environ, "PYTHONPATH": folder},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    result: dict[str, list[str | None]] = json.loads(ended.stdout)
    return result


def main() -> None:
    date = datetime.now().astimezone().date().isoformat()
    # llama-server and transformers only know the switch by the template's own name.
    conversations = deepcopy(CONVERSATIONS)
    for body in conversations.values():
        variables = body.get("chat_template_kwargs", {})
        if "enable_thinking" in variables:
            variables["thinking"] = variables["enable_thinking"]
    sources = templates()
    second = _transformers(sources, {"conversations": conversations, "bos": BOS, "eos": EOS})
    rows = {}
    for name in sources:
        pairs = zip(_llama_server(name, conversations), second[name], strict=True)
        rows[name] = [
            " ".join(REFUSED if text is None else digest(text) for text in pair) for pair in pairs
        ]
    document = {"date": date, "conversations": list(conversations), "templates": rows}
    REFERENCES.write_text(layout(document))


if __name__ == "__main__":
    main()
