"""TLS and mTLS with generated certificates."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from corral.inference.v1 import inference_service_pb2 as pb
from corral.inference.v1.engine_service_pb2 import GetLoadRequest
from pydantic import ValidationError

from svc_kit import errors
from svc_kit.lifecycle import StartupError
from svc_kit.rpc.client import translate_errors
from svc_kit.rpc.server import RpcServer
from svc_kit.settings.groups import ServiceTlsSettings, UpstreamTlsSettings
from tests.support.replicas import run_replicas
from tests.support.rpc_servers import Running, allow_all, run_rpc_server

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="the openssl command is required"
)


def openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    new = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    for name in ("ca", "stranger"):
        out = ["-keyout", folder / f"{name}.key", "-out", folder / f"{name}.crt"]
        openssl(*new, *out, "-subj", f"/CN={name}")
    for name in ("server", "client"):
        key, request = folder / f"{name}.key", folder / f"{name}.csr"
        openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", request,
                "-subj", f"/CN={name}",
                "-addext", "subjectAltName=DNS:corral.test,DNS:localhost")  # fmt: skip
        openssl("x509", "-req", "-in", request, "-CA", folder / "ca.crt",
                "-CAkey", folder / "ca.key", "-days", "2", "-copy_extensions", "copy",
                "-out", folder / f"{name}.crt")  # fmt: skip
    return folder


def server_tls(folder: Path, **options: Any) -> ServiceTlsSettings:
    return ServiceTlsSettings(
        certificate_file=folder / "server.crt", key_file=folder / "server.key", **options
    )


def client_tls(folder: Path, name: str | None = None) -> UpstreamTlsSettings:
    """Build the settings of a client that trusts the CA, with the certificate `name` if set."""
    return UpstreamTlsSettings(
        ca_file=folder / "ca.crt",
        certificate_file=None if name is None else folder / f"{name}.crt",
        key_file=None if name is None else folder / f"{name}.key",
        server_name="corral.test",
    )


async def tokenize(running: Running) -> list[int]:
    with translate_errors("inference"):
        return list((await running.stub.Tokenize(pb.TokenizeRequest())).token_ids)


async def test_a_client_with_the_ca_connects_over_tls(certificates: Path) -> None:
    """It verifies the server."""
    async with run_rpc_server(
        tls=server_tls(certificates), client_tls=client_tls(certificates)
    ) as r:
        assert await tokenize(r) == [1, 2]


async def test_a_client_without_tls_is_refused(certificates: Path) -> None:
    async with run_rpc_server(tls=server_tls(certificates)) as running:
        with pytest.raises(errors.UpstreamUnavailable):
            await tokenize(running)


@pytest.mark.parametrize(
    ("name", "is_served"), [("client", True), (None, False), ("stranger", False)]
)
async def test_mtls_accepts_only_certificates_of_its_ca(
    certificates: Path, name: str | None, is_served: bool
) -> None:
    """Without a certificate, or with one of another CA, the client cannot connect."""
    tls = server_tls(certificates, client_ca_file=certificates / "ca.crt")
    async with run_rpc_server(tls=tls, client_tls=client_tls(certificates, name)) as running:
        if is_served:
            assert await tokenize(running) == [1, 2]
            return
        with pytest.raises(errors.UpstreamUnavailable):
            await tokenize(running)


@pytest.mark.parametrize("by_name", [False, True])
async def test_replicas_are_verified_by_one_name(certificates: Path, by_name: bool) -> None:
    """`server_name`, or the name that resolves to them: certificates need not have addresses. Calls
    to each of them, too."""
    name = {} if by_name else {"server_name": "corral.test"}
    tls = UpstreamTlsSettings(ca_file=certificates / "ca.crt", **name)
    async with run_replicas(
        1 if by_name else 2, by_name=by_name, tls=server_tls(certificates), client_tls=tls
    ) as replicas:
        await replicas.generate(pb.GenerateRequest(text="t"))
        await replicas.stub.Tokenize(pb.TokenizeRequest(text="t"))
        load = (await replicas.engine.GetLoad(GetLoadRequest())).load

    assert load.num_slots == 2 * len(replicas.servers)


async def test_replicas_with_another_name_are_not_called(certificates: Path) -> None:
    tls = UpstreamTlsSettings(ca_file=certificates / "ca.crt")
    async with run_replicas(2, tls=server_tls(certificates), client_tls=tls) as replicas:
        with pytest.raises(grpc.aio.AioRpcError):
            await replicas.stub.Tokenize(pb.TokenizeRequest(text="t"), timeout=5)


async def test_a_server_whose_key_does_not_match_its_certificate_does_not_start(
    certificates: Path,
) -> None:
    """gRPC itself would start and refuse every client."""
    from prometheus_client import CollectorRegistry

    tls = ServiceTlsSettings(
        certificate_file=certificates / "server.crt", key_file=certificates / "client.key"
    )
    server = RpcServer(
        [],
        listen="127.0.0.1:0",
        authenticator=allow_all(),
        registry=CollectorRegistry(),
        tls=tls,
    )

    with pytest.raises(StartupError, match=r"server\.crt.*cannot be used"):
        await server.start()


@pytest.mark.parametrize(
    ("names", "is_served"),
    [({"corral.test"}, True), ({"other.test", "corral.test"}, True), ({"corral"}, False)],
)
async def test_only_clients_with_a_named_certificate_are_served(
    certificates: Path, names: set[str], is_served: bool
) -> None:
    """By its subject alternative names, whatever its key or token permits."""
    tls = server_tls(
        certificates, client_ca_file=certificates / "ca.crt", client_names=frozenset(names)
    )
    async with run_rpc_server(tls=tls, client_tls=client_tls(certificates, "client")) as running:
        if is_served:
            assert await tokenize(running) == [1, 2]
            return
        with pytest.raises(errors.ClientNotAllowed, match=r"corral\.test"):
            await tokenize(running)


def test_names_of_clients_need_an_authority(certificates: Path) -> None:
    """Without one no certificate is asked for."""
    with pytest.raises(ValidationError, match="client_names needs client_ca_file"):
        server_tls(certificates, client_names=frozenset({"corral.test"}))
