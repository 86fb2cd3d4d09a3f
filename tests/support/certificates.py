"""Certificate authorities and certificates for tests."""

import ipaddress
import ssl
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

from svc_kit.network import Address


@dataclass(frozen=True)
class Pair:
    certificate: bytes
    key: bytes
    serial: int

    def write(self, folder: Path, name: str) -> tuple[Path, Path]:
        """Replace NAME.crt and NAME.key, each in one step; return their paths."""
        paths = folder / f"{name}.crt", folder / f"{name}.key"
        for path, content in zip(paths, (self.certificate, self.key), strict=True):
            new = path.with_suffix(".new")
            new.write_bytes(content)
            new.chmod(0o600)
            new.replace(path)
        return paths


@dataclass(frozen=True)
class Authority:
    name: str = "test authority"
    key: ec.EllipticCurvePrivateKey = field(
        default_factory=lambda: ec.generate_private_key(ec.SECP256R1())
    )

    @property
    def certificate(self) -> bytes:
        """Its own certificate, in PEM; another one each time, with the same key."""
        builder = _builder(self.name, self.name, self.key.public_key(), timedelta(days=2))
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        return builder.sign(self.key, hashes.SHA256()).public_bytes(Encoding.PEM)

    def issue(
        self, *names: str, valid_for: timedelta = timedelta(days=2), client: bool = False
    ) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(names[0], self.name, key.public_key(), valid_for)
        alternatives = [
            *map(x509.DNSName, names),
            *([] if client else [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
        ]
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), False)
        certificate = builder.sign(self.key, hashes.SHA256())
        return Pair(
            certificate.public_bytes(Encoding.PEM),
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
            certificate.serial_number,
        )


def _builder(
    name: str, issuer: str, key: ec.EllipticCurvePublicKey, valid_for: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=30))
        .not_valid_after(now + valid_for)
    )


def served_serial(address: Address) -> int:
    """Connect and return the serial number of the server's certificate."""
    pem = ssl.get_server_certificate((address.host, address.port), timeout=10)
    return x509.load_pem_x509_certificate(pem.encode()).serial_number
