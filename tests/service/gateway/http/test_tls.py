"""HTTPS, with a certificate made for the test."""

import shutil
import ssl
import subprocess
from pathlib import Path

import httpx
import pytest

from gateway.app import running
from gateway.config import GatewaySettings
from svc_kit.lifecycle import StartupError
from svc_kit.settings.groups import TlsSettings
from tests.support.loopback_gateway import LOOPBACK, a_gateway

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="the openssl command makes the certificate"
)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> TlsSettings:
    """A certificate for localhost that signs itself."""
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "server.crt", folder / "server.key"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    new = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    subprocess.run(
        ["openssl", *new, *subject, "-keyout", key, "-out", certificate],
        check=True,
        capture_output=True,
    )
    return TlsSettings(certificate_file=certificate, key_file=key)


async def test_https_is_served(tls: TlsSettings) -> None:
    """A client that trusts the certificate talks to the gateway as over plain HTTP."""
    trusting = ssl.create_default_context(cafile=tls.certificate_file)
    async with (
        a_gateway(tls=tls) as gateway,
        httpx.AsyncClient(verify=trusting, trust_env=False) as client,
    ):
        answer = await client.get(f"https://{gateway.address}/v1/models")

    assert answer.status_code == 200


async def test_files_that_do_not_belong_together_keep_it_from_starting(
    tls: TlsSettings, tmp_path: Path
) -> None:
    """One clear line instead of handshakes that fail."""
    broken = tmp_path / "broken.key"
    broken.write_text("no key", encoding="utf-8")
    settings = GatewaySettings(
        listen=LOOPBACK,
        management_listen=None,
        tls=TlsSettings(certificate_file=tls.certificate_file, key_file=broken),
    )

    with pytest.raises(StartupError, match="TLS files"):
        async with running(settings):
            pass
