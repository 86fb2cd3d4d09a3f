"""HTTPS with a self-signed certificate."""

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
from httpx import AsyncClient

from gateway.app import running
from gateway.config import GatewaySettings
from svc_kit.lifecycle import StartupError
from svc_kit.settings.groups import TlsSettings
from tests.support.loopback_gateway import LOOPBACK, run_gateway

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
    """With a self-signed certificate."""
    trusting = ssl.create_default_context(cafile=tls.certificate_file)
    async with (
        run_gateway(tls=tls) as gateway,
        AsyncClient(verify=trusting, trust_env=False) as client,
    ):
        answer = await client.get(f"https://{gateway.address}/v1/models")

    assert answer.status_code == 200


async def test_invalid_tls_files_raise_startup_error(tls: TlsSettings, tmp_path: Path) -> None:
    """With a clear message."""
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
