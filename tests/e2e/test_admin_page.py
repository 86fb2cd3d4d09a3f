"""Runs every command of docs/operate/admin.md in order."""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from inference_svc.models.sources import BUNDLED_FOLDER
from tests.e2e.conftest import PIRATE_FILE
from tests.e2e.test_buf_curl import messages
from tests.support.services import MODEL, Corral, corral_up

pytestmark = pytest.mark.e2e

PAGE = Path(__file__).resolve().parents[2] / "docs/operate/admin.md"
BUF = Path(sys.executable).with_name("buf")
COMMAND = re.compile(r"^```sh\n(buf curl .*)\n```$", re.MULTILINE)
INFERENCE, CONTROL = "127.0.0.1:50051", "127.0.0.1:50052"
REFUSED = {"corral.control.v1.JobService/RetryJob": "cannot be retried: it is done"}
"""Commands that need a failed object, and the error without one."""


class Task(NamedTuple):
    target: str
    method: str
    data: str


def tasks() -> list[Task]:
    return list(map(_parse, COMMAND.findall(PAGE.read_text())))


def _parse(line: str) -> Task:
    words = shlex.split(line)
    assert words[:6] == ["buf", "curl", "--protocol", "grpc", "--http2-prior-knowledge", "-d"]
    target, _, method = words[7].removeprefix("http://").partition("/")
    return Task(target, method, words[6])


def test_every_block_is_one_call() -> None:
    """So that the test below makes all of them."""
    assert len(tasks()) == PAGE.read_text().count("```sh")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corral]:
    """A Corral that can be drained, whose models can be unloaded, with an adapter in its data
    folder and embeddings."""
    with corral_up(tmp_path_factory.mktemp("admin"), "--embedding-model", MODEL) as corral:
        adapters = corral.program.directory / "data" / "adapters"
        adapters.mkdir(exist_ok=True)
        shutil.copy(BUNDLED_FOLDER / PIRATE_FILE, adapters)
        yield corral


def test_every_command_works_in_order(server: Corral) -> None:
    """Ids in a response replace placeholders in later commands."""
    targets = {INFERENCE: server.target, CONTROL: server.control}
    values: dict[str, str] = {}
    for task in tasks():
        data = task.data
        for placeholder, value in values.items():
            data = data.replace(placeholder, value)
        result = _call(targets[task.target], task.method, data)

        if task.method in REFUSED:
            assert REFUSED[task.method] in result.stderr
            continue
        assert result.returncode == 0, f"{task.method}: {result.stderr}"
        for message in messages(result.stdout):
            values |= _placeholders(message)


def _call(target: str, method: str, data: str) -> "subprocess.CompletedProcess[str]":
    command = [str(BUF), "curl", "--protocol", "grpc", "--http2-prior-knowledge", "-d", data]
    return subprocess.run(
        [*command, f"http://{target}/{method}"], capture_output=True, text=True, timeout=60
    )


def _placeholders(message: dict[str, Any]) -> dict[str, str]:
    """Collect placeholders from a response: FILE_ID is the id of "file" or of the first of "files",
    and so on; also the id of an accepted request, and the thread and first call of a run."""
    placeholders = {}
    for name, part in message.items():
        item = part[0] if isinstance(part, list) and part else part
        if isinstance(item, dict) and "id" in item:
            words = re.sub(r"(?=[A-Z])", "_", name.removesuffix("s"))
            placeholders[f"{words.upper()}_ID"] = item["id"]
    if "run" in message:
        placeholders["THREAD_ID"] = message["run"]["threadId"]
        for call in message["run"].get("requiredCalls", [])[:1]:
            placeholders["CALL_ID"] = call["callId"]
    if "accepted" in message:
        placeholders["REQUEST_ID"] = message["accepted"]["requestId"]
    return placeholders
