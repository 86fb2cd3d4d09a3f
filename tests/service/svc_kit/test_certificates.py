"""TLS certificates are reloaded while servers run, over HTTP and gRPC."""

import asyncio
import logging
import ssl
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from corral.inference.v1 import inference_service_pb2 as pb
from prometheus_client import CollectorRegistry

from svc_kit.certificates import ServerCertificate
from svc_kit.errors import UpstreamUnavailable
from svc_kit.lifecycle import StartupError
from svc_kit.network import Address
from svc_kit.rpc.client import open_channel, translate_errors
from svc_kit.settings.groups import ServiceTlsSettings, UpstreamTlsSettings
from tests.support.certificates import Authority, served_serial
from tests.support.fake_inference import FakeInference, Script
from tests.support.loopback_gateway import run_gateway
from tests.support.plain_http import CHAT, QUESTION
from tests.support.rpc_servers import ScriptedInference, run_rpc_server, stub_on

NUM_STREAMS = 16
NUM_CHANGES = 3
CHANGED = 'corral_tls_certificate_reloads_total{outcome="%s"}'
EXPIRY = "corral_tls_certificate_expiry_timestamp_seconds"


class Files:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority()
        self.ca = folder / "ca.crt"
        self.ca.write_bytes(self.authority.certificate)
        self.change()
        self.settings = ServiceTlsSettings(
            certificate_file=folder / "server.crt", key_file=folder / "server.key"
        )

    def change(self, **options: Any) -> int:
        """Replace the certificate and its key; return the new serial number."""
        pair = self.authority.issue("corral.test", **options)
        pair.write(self.folder, "server")
        return pair.serial


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def load(files: Files) -> tuple[ServerCertificate, CollectorRegistry]:
    """Load the files, and return the registry of the metrics too."""
    registry = CollectorRegistry()
    return ServerCertificate(files.settings, registry), registry


def refresh(certificate: ServerCertificate) -> None:
    """Look at the files twice: they are read when they no longer change."""
    certificate.refresh()
    certificate.refresh()


def test_a_key_of_another_certificate_is_refused_until_the_pair_fits(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    """The log and a metric say so, once for each change, and the right pair is used then."""
    certificate, registry = load(files)
    pair, other = files.authority.issue("corral.test"), files.authority.issue("corral.test")
    pair.write(files.folder, "server")
    files.settings.key_file.write_bytes(other.key)
    refresh(certificate)
    refresh(certificate)
    assert registry.get_sample_value(
        "corral_tls_certificate_reloads_total", {"outcome": "refused"}
    ) == (1)
    assert "server.crt is not used, the previous one stays" in caplog.text

    pair.write(files.folder, "server")
    refresh(certificate)

    loaded = {"outcome": "loaded"}
    assert registry.get_sample_value("corral_tls_certificate_reloads_total", loaded) == 1


@pytest.mark.parametrize("broken", ["", "no certificate", None])
def test_files_without_a_certificate_are_refused(
    files: Files, broken: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Also a file that is gone; the server continues with what it has."""
    certificate, registry = load(files)
    expiry = registry.get_sample_value(EXPIRY)
    files.settings.certificate_file.unlink()
    if broken is not None:
        files.settings.certificate_file.write_text(broken, encoding="utf-8")
    refresh(certificate)

    assert "the previous one stays" in caplog.text
    assert registry.get_sample_value(EXPIRY) == expiry


def test_an_expired_certificate_is_refused(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    """The previous one stays, and with it the metric of its end."""
    certificate, registry = load(files)
    expiry = registry.get_sample_value(EXPIRY)
    files.change(valid_for=timedelta(days=-1))
    refresh(certificate)

    assert "it is valid from" in caplog.text
    assert registry.get_sample_value(EXPIRY) == expiry


def test_a_certificate_that_clients_refuse_is_logged_once(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    """One that has expired at the start; the service starts, since the files can be replaced."""
    files.change(valid_for=timedelta(days=-1))
    certificate, registry = load(files)
    refresh(certificate)
    expired = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    files.change()
    refresh(certificate)

    assert len(expired) == 1
    assert "server.crt: it is valid from" in expired[0]
    assert len([each for each in caplog.records if each.levelname == "ERROR"]) == 1
    assert registry.get_sample_value("corral_tls_certificate_refused") == 0


def test_a_gauge_says_that_the_files_are_not_used(files: Files) -> None:
    """Until they are right."""
    certificate, registry = load(files)
    files.change(valid_for=timedelta(days=-1))
    refresh(certificate)
    refused = registry.get_sample_value("corral_tls_certificate_refused")
    files.change()
    refresh(certificate)

    assert refused == 1
    assert registry.get_sample_value("corral_tls_certificate_refused") == 0


@pytest.mark.parametrize("offered", [["h2", "http/1.1"], ["http/1.1"], ["h2"], []])
async def test_the_gateway_agrees_on_http_1_1(files: Files, offered: list[str]) -> None:
    """By ALPN, also with a new certificate; a client that does not offer it may try."""
    context = ssl.create_default_context(cafile=files.ca)
    if offered:
        context.set_alpn_protocols(offered)
    async with run_gateway(tls=files.settings) as gateway:
        await new_connections_have(files.change(), gateway.address)
        _, writer = await asyncio.open_connection(
            gateway.address.host, gateway.address.port, ssl=context, server_hostname="corral.test"
        )
        agreed = writer.get_extra_info("ssl_object").selected_alpn_protocol()
        writer.close()
        await writer.wait_closed()

    assert agreed == ("http/1.1" if "http/1.1" in offered else None)


def test_the_metric_of_the_expiry_follows_the_certificate(files: Files) -> None:
    """It is the end of the certificate in use."""
    certificate, registry = load(files)
    before = registry.get_sample_value(EXPIRY)
    files.change(valid_for=timedelta(days=9))
    refresh(certificate)

    after = registry.get_sample_value(EXPIRY)
    assert before is not None
    assert after is not None
    assert after - before == pytest.approx(7 * 86400, abs=120)


def test_a_change_is_read_when_it_is_complete(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is reported while the files still change."""
    caplog.set_level(logging.INFO)
    certificate, _ = load(files)
    pair = files.authority.issue("corral.test")
    files.settings.certificate_file.write_bytes(pair.certificate)
    certificate.refresh()
    files.settings.key_file.write_bytes(pair.key)
    certificate.refresh()
    assert caplog.text == ""
    certificate.refresh()

    assert "was reloaded" in caplog.text


def test_files_that_cannot_be_used_prevent_the_start(files: Files) -> None:
    """The error names the files."""
    files.settings.key_file.write_text("no key", encoding="utf-8")
    with pytest.raises(StartupError, match=r"server\.crt.*server\.key cannot be used"):
        load(files)


async def new_connections_have(serial: int, address: Address) -> int:
    """Connect until the server presents this certificate; return the number of connections."""
    number = 1
    while await asyncio.to_thread(served_serial, address) != serial:
        number += 1
    return number


async def test_https_streams_survive_changes_of_the_certificate(files: Files) -> None:
    """None is lost, new connections get the new certificate, and none is refused meanwhile."""
    fake = FakeInference()
    gate, started = asyncio.Event(), asyncio.Barrier(NUM_STREAMS + 1)
    fake.script = Script(pieces=["x"] * 20, gate=gate, gate_at=3)
    trusting = ssl.create_default_context(cafile=files.ca)
    body = {"model": "fake", "messages": QUESTION, "stream": True}

    async def stream(client: httpx.AsyncClient) -> int:
        async with client.stream("POST", CHAT, json=body) as answer:
            await started.wait()
            lines = [line async for line in answer.aiter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        return sum('"content":"x"' in line for line in lines)

    async with (
        run_gateway(fake, tls=files.settings) as gateway,
        httpx.AsyncClient(
            base_url=f"https://{gateway.address}", verify=trusting, trust_env=False, timeout=20
        ) as client,
    ):
        streams = [asyncio.create_task(stream(client)) for _ in range(NUM_STREAMS)]
        await started.wait()
        for _ in range(NUM_CHANGES):
            await new_connections_have(files.change(), gateway.address)
        gate.set()
        counts = await asyncio.gather(*streams)

    assert counts == [20] * NUM_STREAMS


async def test_grpc_streams_survive_changes_of_the_certificate(files: Files) -> None:
    """None is lost, new connections get the new certificate, and none is refused meanwhile."""
    gate = asyncio.Event()

    async def generate(request: Any, context: Any) -> AsyncGenerator[pb.GenerateResponse, None]:
        yield pb.GenerateResponse(sequence_number=0)
        await gate.wait()
        for number in range(1, 20):
            yield pb.GenerateResponse(sequence_number=number)

    tls = UpstreamTlsSettings(ca_file=files.ca, server_name="corral.test")
    async with run_rpc_server(
        ScriptedInference(generate=generate), tls=files.settings, client_tls=tls
    ) as running:
        calls = [aiter(running.stub.Generate(pb.GenerateRequest())) for _ in range(NUM_STREAMS)]
        for call in calls:
            await anext(call)
        for _ in range(NUM_CHANGES):
            await new_connections_have(files.change(), running.server.address)
            async with open_channel(
                running.target, tls=tls, options=[("grpc.use_local_subchannel_pool", 1)]
            ) as channel:
                await stub_on(channel).Tokenize(pb.TokenizeRequest())
        gate.set()
        counts = [len([event async for event in call]) for call in calls]
        metrics = running.metrics()

    assert counts == [19] * NUM_STREAMS
    assert metrics[CHANGED % "loaded"] == NUM_CHANGES


@pytest.mark.parametrize("transport", ["https", "grpc"])
async def test_clients_of_a_removed_authority_are_refused(files: Files, transport: str) -> None:
    """With mTLS; those of the new authority are served."""
    first, second = Authority("first"), Authority("second")
    trusted = files.folder / "clients.crt"
    trusted.write_bytes(first.certificate)
    clients = {}
    for name, authority in (("first", first), ("second", second)):
        clients[name] = authority.issue(f"{name}.test", client=True).write(files.folder, name)
    tls = files.settings.model_copy(update={"client_ca_file": trusted})

    async def is_served(address: Address, name: str) -> bool:
        certificate, key = clients[name]
        if transport == "https":
            context = ssl.create_default_context(cafile=files.ca)
            context.load_cert_chain(certificate, key)
            try:
                async with httpx.AsyncClient(verify=context, trust_env=False) as client:
                    return (await client.get(f"https://{address}/health")).status_code == 200
            except httpx.TransportError:
                return False
        own = UpstreamTlsSettings(
            ca_file=files.ca, server_name="corral.test", certificate_file=certificate, key_file=key
        )
        local = [("grpc.use_local_subchannel_pool", 1)]
        async with open_channel(str(address), tls=own, options=local) as channel:
            try:
                with translate_errors():
                    await stub_on(channel).Tokenize(pb.TokenizeRequest())
            except UpstreamUnavailable:
                return False
            return True

    async def check(address: Address) -> None:
        assert await is_served(address, "first")
        assert not await is_served(address, "second")
        trusted.write_bytes(second.certificate)
        while not await is_served(address, "second"):
            pass
        assert not await is_served(address, "first")

    if transport == "https":
        async with run_gateway(tls=tls) as gateway:
            await check(gateway.address)
    else:
        async with run_rpc_server(tls=tls) as running:
            await check(running.server.address)
