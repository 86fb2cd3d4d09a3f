"""The message of `corral up` when all services are ready."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

from corral.inference.v1 import model_pb2, upstream_pb2

from corral_cli.up.announcement import Announcement, describe
from svc_kit.network import Address
from svc_kit.settings.groups import TlsSettings, UpstreamTlsSettings, default_data_dir

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
    management=[Address("127.0.0.1", port) for port in (8081, 50061, 50062)],
    models=[MODEL],
    data_dir=Path("/data"),
    elapsed_s=2.34,
    needs_key=False,
)


def make_tls(folder: Path) -> TlsSettings:
    for name in ("tls.crt", "tls.key"):
        (folder / name).touch(mode=0o600)
    return TlsSettings(certificate_file=folder / "tls.crt", key_file=folder / "tls.key")


def test_addresses_model_and_sizes_are_printed() -> None:
    """And the startup time."""
    text = ANNOUNCEMENT.text()

    assert "Corral is ready after 2.3 s" in text
    assert "http://127.0.0.1:8080/v1" in text
    assert "gRPC        127.0.0.1:50051" in text
    assert "8 slots of 2,048 tokens (25 MB of KV cache), 2 compute thread(s)" in text


def test_a_service_that_is_away_is_named_in_the_first_line() -> None:
    text = replace(ANNOUNCEMENT, away={"control": "exited with code 75: x"}).text()

    assert text.startswith(
        "Corral is ready after 2.3 s, without control: it exited with code 75: x"
    )


def test_an_engine_of_others_is_named_with_its_state() -> None:
    """One that is away, with the reason for each URL."""
    endpoints = [upstream_pb2.UpstreamEndpoint(url="http://h:1", problem="connection refused")]
    upstream = upstream_pb2.Upstream(engine="vllm 0.33.0", endpoints=endpoints)
    limits = model_pb2.ModelLimits(slots=8, context_tokens=2048)
    model = model_pb2.Model(name="big", upstream=upstream, resolved_limits=limits)

    def described(state: model_pb2.Model.State) -> str:
        model.state = state
        return describe(model)

    assert described(model_pb2.Model.STATE_READY) == (
        "big    vllm 0.33.0 at http://h:1, 8 sequences of 2,048 tokens"
    )
    assert described(model_pb2.Model.STATE_LOADING) == (
        "big    its engine is away, and is tried again: http://h:1: connection refused"
    )
    assert described(model_pb2.Model.STATE_AVAILABLE) == "big    connected by the first request"
    upstream = upstream_pb2.Upstream(engine="openai", endpoints=endpoints, text_mode=True)
    model.upstream.CopyFrom(upstream)
    model.resolved_limits.ClearField("context_tokens")
    assert described(model_pb2.Model.STATE_READY) == (
        "big    openai at http://h:1, 8 sequences; --tokenizer adds resume, our parsers and exact"
        " usage"
    )


def test_the_curl_command_is_valid_shell_syntax() -> None:
    """It has the URL and a JSON body with the model's name."""
    arguments = shlex.split(ANNOUNCEMENT.curl_command())

    assert arguments[:2] == ["curl", "http://127.0.0.1:8080/v1/chat/completions"]
    assert json.loads(arguments[-1])["model"] == "demo-chat"


def test_addresses_of_a_gateway_with_tls_are_https(tmp_path: Path) -> None:
    """Those of the API, the page and the sample request; metrics have no TLS."""
    text = replace(ANNOUNCEMENT, tls=make_tls(tmp_path)).text()

    assert text.count("https://127.0.0.1:8080/") == 4
    assert "http://127.0.0.1:8080" not in text
    assert "http://127.0.0.1:8081/metrics" in text


def test_the_curl_command_has_a_key_if_the_server_requires_one() -> None:
    """Otherwise it has no authorization header."""
    assert "authorization" not in ANNOUNCEMENT.curl_command()
    assert "$CORRAL_API_KEY" in replace(ANNOUNCEMENT, needs_key=True).curl_command()


def test_the_command_that_creates_the_first_key_is_printed_if_keys_are_required() -> None:
    """It uses the service token."""
    required = replace(ANNOUNCEMENT, needs_key=True, require_keys=True, data_dir=Path("/my data"))

    assert "keys create" not in ANNOUNCEMENT.text()
    assert "keys create --data-dir '/my data'\n" in required.text()


def test_a_hint_to_a_real_model_is_printed_for_the_bundled_one() -> None:
    other = model_pb2.Model(name="qwen")

    assert "tiny model" in ANNOUNCEMENT.text()
    assert "tiny model" not in replace(ANNOUNCEMENT, models=[other]).text()


def test_the_chat_command_names_the_data_folder_unless_it_is_the_default() -> None:
    """Commands find the services of the default one by themselves."""
    default = replace(ANNOUNCEMENT, data_dir=default_data_dir({}))
    moved = replace(ANNOUNCEMENT, data_dir=Path("/second"))

    assert default.chat_command().endswith("corral chat")
    assert moved.chat_command().endswith("corral chat --data-dir /second")


def test_commands_for_services_with_tls_have_its_options(tmp_path: Path) -> None:
    """Authorities, those of the system if none are set, a client certificate, and the name in the
    server's."""
    tls = make_tls(tmp_path)
    files = {"certificate_file": tls.certificate_file, "key_file": tls.key_file}
    announced = replace(
        ANNOUNCEMENT,
        tls=tls.model_copy(update={"client_ca_file": tls.certificate_file}),
        inference_tls=UpstreamTlsSettings(),
        control_tls=UpstreamTlsSettings(ca_file=tls.certificate_file, server_name="c", **files),
        require_keys=True,
        data_dir=default_data_dir({}),
    )

    assert shlex.split(announced.curl_command())[1:7] == [
        *("--cacert", f"{tmp_path}/tls.crt", "--cert", "CLIENT.crt", "--key", "CLIENT.key")
    ]
    _, flag, _, *chat = shlex.split(announced.chat_command())
    assert (flag, chat) == ("--ca-file", ["chat"])
    assert shlex.split(announced.create_key_command())[1:] == [
        *("--ca-file", f"{tmp_path}/tls.crt", "--certificate-file", f"{tmp_path}/tls.crt"),
        *("--key-file", f"{tmp_path}/tls.key", "keys", "create"),
        *("--data-dir", str(default_data_dir({}))),
    ]


def test_a_failed_model_is_listed_with_its_problem() -> None:
    failed = model_pb2.Model(name="broken", state=model_pb2.Model.STATE_FAILED, problem="no memory")

    assert describe(failed) == "broken    failed: no memory"
