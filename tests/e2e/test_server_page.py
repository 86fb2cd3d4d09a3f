"""The commands of the pages for operators run as they are written, in order."""

import re
from pathlib import Path

import pytest

from tests.support.shell_blocks import WAIT, blocks, needs_own_network, run_script

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(280), needs_own_network]

OPERATE = "docs/operate"
PAGE = f"{OPERATE}/server.md"
STEPS = [
    *("Install", "Certificate", "Settings", "Start", "First keys", "Limits", "Metrics", "Backup"),
    "Upgrade",
]


def test_a_server_is_set_up_by_the_page_alone(tmp_path: Path) -> None:
    """With keys, TLS, limits, metrics, the page in the browser, and a backup."""
    install, certificate, settings, (start,), keys, *later, upgrade = (
        blocks(PAGE, step) for step in STEPS
    )
    first_key, project, request = keys
    output = run_script(
        [
            *install,
            *certificate,
            *settings,
            f"{start.strip()} >up.log 2>&1 &",
            f"{WAIT} --cacert tls.crt https://127.0.0.1:8443/ready",
            f"{first_key.strip()} | tee created",
            project.replace("=KEY", "=$(grep -o 'sk-corral-[^ ]*' created | head -1)"),
            request,
            "curl --fail --silent --cacert tls.crt https://127.0.0.1:8443/ui/",
            "curl --silent --cacert tls.crt https://127.0.0.1:8443/v1/models",
            *(each for step in later for each in step),
            "kill %1; wait %1",
            *upgrade,
        ],
        tmp_path,
    ).stdout

    assert "nothing is wrong" in output
    assert "The capital of France is Paris." in output
    assert '"type":"authentication_error"' in output.replace(" ", "")
    assert "<title>Corral</title>" in output
    assert "shop-rate    60 requests per minute    project shop, each key" in output
    assert output.count("ready") > 3
    assert "0 problems" in output


A_KEY = "$(corral keys list | grep -o '^key_[^ ]*' | head -1)"
"""What an operator has instead of the pages' `key_…`."""
RUNS_ON = "corral up "
"""What the test itself starts."""


def commands(page: str, heading: str = "") -> list[str]:
    """The command lines below a heading, with values in place of placeholders."""
    lines = "\n".join(blocks(f"{OPERATE}/{page}.md", heading)).replace("key_…", A_KEY).splitlines()
    return [line for line in lines if not line.startswith(RUNS_ON)]


def test_the_commands_of_the_other_pages_run(tmp_path: Path) -> None:
    """Of keys, the audit log, limits, models and adapters, where keys are not required."""
    models = "--model chat=bundled --model qwen3-8b=bundled --model demo-chat=bundled"
    output = run_script(
        [
            'export PATH="$PWD/.venv/bin:$PATH"',
            "cp repository/inference_svc/models/bundled/demo-lora-pirate-f16.gguf pirate.gguf",
            f"corral up {models} >up.log 2>&1 &",
            f"{WAIT} http://127.0.0.1:8080/ready",
            *commands("secure", "Keys"),
            *commands("secure", "Audit log"),
            *commands("limits"),
            *commands("models", "Loading and eviction"),
            "corral models load chat",
            *commands("adapters", "For every server"),
        ],
        tmp_path,
    ).stdout

    assert ", archived " in output
    assert "ProjectService/ArchiveProject" in output
    assert "chat-rate is deleted" in output
    assert '"default_scale":0.5' in output.replace(" ", "")


def test_single_objects_come_back_and_a_release_is_rolled_back_by_the_pages(tmp_path: Path) -> None:
    """An assistant that was deleted is imported from a second installation; then the backup takes
    the place of everything."""
    page = "\n".join(blocks(f"{OPERATE}/backup.md", "One project"))
    page = page.replace("/backups/corral", "~/backups")
    restore, second, *copy = page.strip().splitlines()
    assistants = "http://127.0.0.1:8080/v1/assistants"
    json_body = '--json \'{"model": "chat", "name": "Tutor"}\''
    output = run_script(
        [
            'export PATH="$PWD/.venv/bin:$PATH"',
            "corral up --model chat=bundled >up.log 2>&1 & first=$!",
            f"{WAIT} http://127.0.0.1:8080/ready",
            f"created=$(curl --fail --silent {json_body} {assistants} | grep -o 'asst_[0-9a-z]*')",
            "corral backup ~/backups",
            f"curl --fail --silent -X DELETE {assistants}/$created",
            restore,
            f"{second} --model chat=bundled >second.log 2>&1 & second=$!",
            f"{WAIT} http://127.0.0.1:8090/ready",
            *copy,
            f"echo; echo then: $(curl --fail --silent {assistants})",
            "kill $first $second; wait $first $second",
            *blocks(f"{OPERATE}/upgrade.md", "Roll back"),
        ],
        tmp_path,
    ).stdout

    assert re.search(r"then: .*Tutor", output)
    assert "0 problems" in output
