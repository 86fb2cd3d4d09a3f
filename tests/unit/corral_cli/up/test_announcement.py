"""What an operator reads once everything answers."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

from corral.inference.v1 import model_pb2

from corral_cli.up.announcement import Announcement, describe
from svc_kit.network import Address

MODEL = model_pb2.Model(
    name="demo-chat",
    num_parameters=4_066_560,
    size_bytes=4_400_000,
    resolved_limits=model_pb2.ModelLimits(
        slots=8, context_tokens=2048, kv_bytes=25_165_824, threads=2
    ),
)
ANNOUNCEMENT = Announcement(
    gateway=Address("0.0.0.0", 8080),
    inference=Address("127.0.0.1", 50051),
    control=Address("127.0.0.1", 50052),
    gateway_management=Address("127.0.0.1", 8081),
    inference_management=Address("127.0.0.1", 50061),
    control_management=Address("127.0.0.1", 50062),
    models=[MODEL],
    data_dir=Path("/data"),
    elapsed_s=2.34,
    needs_key=False,
)


def test_addresses_model_and_sizes_are_printed() -> None:
    """Where to send requests, which model answers, how many at once, and how long it took."""
    text = ANNOUNCEMENT.text()

    assert "Corral is ready after 2.3 s" in text
    assert "http://127.0.0.1:8080/v1" in text
    assert "gRPC        127.0.0.1:50051" in text
    assert "8 slots of 2,048 tokens (25 MB of KV cache), 2 compute thread(s)" in text


def test_the_request_can_be_pasted() -> None:
    """A shell splits it into curl, the URL and a JSON body with the model's name."""
    words = shlex.split(ANNOUNCEMENT.request())

    assert words[:2] == ["curl", "http://127.0.0.1:8080/v1/chat/completions"]
    assert json.loads(words[-1])["model"] == "demo-chat"


def test_a_server_with_keys_shows_where_the_key_goes() -> None:
    """Without keys there is no header to be puzzled by."""
    assert "authorization" not in ANNOUNCEMENT.request()
    assert "$CORRAL_API_KEY" in replace(ANNOUNCEMENT, needs_key=True).request()


def test_where_keys_are_required_the_first_can_be_made_by_pasting() -> None:
    """With the owner's credential; without that flag there is no such line."""
    required = replace(ANNOUNCEMENT, needs_key=True, token_file=Path("/data/service-token"))

    assert "keys create" not in ANNOUNCEMENT.text()
    assert (
        "keys create --target 127.0.0.1:50052 --service-token-file /data/service-token"
        in required.text()
    )


def test_the_bundled_model_says_what_it_is_and_how_to_get_a_real_one() -> None:
    """Only where it is served."""
    other = model_pb2.Model(name="qwen")

    assert "tiny model" in ANNOUNCEMENT.text()
    assert "tiny model" not in replace(ANNOUNCEMENT, models=[other]).text()


def test_chat_is_told_another_address() -> None:
    """`corral chat` finds the default address by itself."""
    moved = replace(ANNOUNCEMENT, inference=Address("127.0.0.1", 50151))

    assert ANNOUNCEMENT.target() == ""
    assert moved.target() == " --target 127.0.0.1:50151"


def test_a_model_that_failed_says_why() -> None:
    """The other models serve all the same."""
    failed = model_pb2.Model(name="broken", state=model_pb2.Model.STATE_FAILED, problem="no memory")

    assert describe(failed) == "broken    failed: no memory"
