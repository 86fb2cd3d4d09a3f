"""Services of the last release beside those of this tree, as during a rolling upgrade."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import openai
import pytest

from bench.servers import free_ports
from inference_svc.models.sources import BUNDLED_FOLDER
from tests.support.batches import jsonl
from tests.support.control import write_service_token
from tests.support.debian_packages import ROOT
from tests.support.processes import PATIENCE_S
from tests.support.release_trees import serve
from tests.support.sdk_batches import ENDED, make_lines
from tests.support.services import MODEL, RESTART_RETRIES, Settings, wait_until_serving

pytestmark = pytest.mark.e2e

SERVICES = ("inference", "control", "gateway")
ADAPTER = "demo-lora-pirate-f16.gguf"
QUESTION = "What is the capital of France?"
ABOUT = {"model": MODEL, "temperature": 0.0}


@dataclass(frozen=True)
class Mixed:
    """A Corral with one service of the last release."""

    client: openai.OpenAI
    url: str


@pytest.fixture(scope="module", params=SERVICES)
def mixed(
    request: pytest.FixtureRequest, last_release: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mixed]:
    """Three services, of which one is of the last release."""
    folder = tmp_path_factory.mktemp(f"old-{request.param}")
    inference, control, gateway = (f"127.0.0.1:{port}" for port in free_ports(3))
    token = {"service_token_file": str(write_service_token(folder))}
    reached = {"inference_target": inference, "control_target": control}
    settings: dict[str, Settings] = {
        "control": {"listen": control, "inference_target": inference, "auto_migrate": True},
        "inference": {"listen": inference, "control_target": control, "engine.slots": 4},
        "gateway": {"listen": gateway, **reached},
    }
    with ExitStack() as stack:
        for service, about in settings.items():
            sources = last_release if service == request.param else ROOT
            program = stack.enter_context(
                serve(service, folder / "data", sources, {**about, **token})
            )
            program.wait_for_line(r"serving (gRPC|HTTP) on ")
        for target in (control, inference):
            wait_until_serving(target)
        url = f"http://{gateway}"
        client = stack.enter_context(
            openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=RESTART_RETRIES)
        )
        yield Mixed(client, url)


def test_chats_are_streamed(mixed: Mixed) -> None:
    """With their usage."""
    chunks = list(
        mixed.client.chat.completions.create(
            messages=[{"role": "user", "content": QUESTION}],
            stream=True,
            stream_options={"include_usage": True},
            **ABOUT,  # type: ignore[call-overload]
        )
    )
    text = "".join(each.choices[0].delta.content or "" for each in chunks if each.choices)

    assert text == "The capital of France is Paris."
    assert chunks[-1].usage is not None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the SDK deprecates Assistants
def test_a_run_answers(mixed: Mixed) -> None:
    """Its stream ends, and its message is stored."""
    beta = mixed.client.beta
    assistant = beta.assistants.create(model=MODEL, temperature=0, instructions="Answer briefly.")
    thread = beta.threads.create(messages=[{"role": "user", "content": QUESTION}])
    events = list(
        beta.threads.runs.create(thread_id=thread.id, assistant_id=assistant.id, stream=True)
    )
    newest = beta.threads.messages.list(thread.id).data[0]

    assert events[-1].event == "thread.run.completed"
    assert "Paris" in newest.content[0].text.value  # type: ignore[union-attr]


def test_a_response_in_the_background_is_followed(mixed: Mixed) -> None:
    """And continued by another one."""
    first = mixed.client.responses.create(input=QUESTION, background=True, **ABOUT)  # type: ignore[call-overload]
    events = list(mixed.client.responses.retrieve(first.id, stream=True))
    second = mixed.client.responses.create(  # type: ignore[call-overload]
        input="What is the capital of Italy?", previous_response_id=first.id, **ABOUT
    )

    assert events[-1].type == "response.completed"
    assert "Rome" in second.output_text


def test_a_batch_is_completed(mixed: Mixed) -> None:
    """Every line of its file is answered."""
    client = mixed.client
    file = client.files.create(file=("in.jsonl", jsonl(make_lines(4))), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    while batch.status not in ENDED:
        batch = client.batches.retrieve(batch.id)
    output = client.files.content(batch.output_file_id or "").text

    assert batch.status == "completed"
    assert len(output.splitlines()) == 4


def test_an_adapter_is_registered_and_used(mixed: Mixed) -> None:
    """The engine loads what the control service stores."""
    content = (BUNDLED_FOLDER / ADAPTER).read_bytes()
    with httpx.Client(base_url=mixed.url, timeout=PATIENCE_S, trust_env=False) as http:
        made = http.post(
            "/v1/adapters", data={"name": "pirate"}, files={"file": (ADAPTER, content)}
        )
        found = http.get("/v1/adapters/pirate", params={"wait": 60}).json()
    answer = mixed.client.chat.completions.create(
        model="pirate", messages=[{"role": "user", "content": QUESTION}], temperature=0
    )

    assert made.status_code == 200
    assert [each["status"] for each in found["engines"]] == ["ready"]
    assert "Arr!" in (answer.choices[0].message.content or "")
