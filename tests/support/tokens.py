"""An OpenID Connect issuer for tests, which signs with PyJWT and serves its documents."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt import PyJWK
from jwt.algorithms import RSAAlgorithm
from jwt.utils import base64url_encode

AUDIENCE = "https://corral.test"


def new_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


@dataclass
class Issuer:
    """An issuer; its documents are served by `run_issuer`."""

    url: str = "https://issuer.test"
    keys: dict[str, rsa.RSAPrivateKey] = field(default_factory=lambda: {"k1": new_key()})
    num_fetches: int = 0
    is_away: bool = False
    alters: dict[str, Any] = field(default_factory=dict)
    """Fields of the discovery document to replace."""

    def public(self, key_id: str) -> dict[str, Any]:
        jwk: dict[str, Any] = RSAAlgorithm.to_jwk(self.keys[key_id].public_key(), as_dict=True)
        return jwk | {"kid": key_id, "alg": "RS256", "use": "sig"}

    def token(self, key_id: str = "k1", *, alg: str = "RS256", **claims: Any) -> str:
        """Sign a token; a claim that is None is left out."""
        now = datetime.now(UTC)
        defaults = {
            "iss": self.url,
            "aud": AUDIENCE,
            "sub": "alice",
            "iat": now,
            "exp": now + timedelta(minutes=5),
            "scope": "openid corral:inference",
            "groups": ["staff", "research"],
        }
        kept = {name: value for name, value in (defaults | claims).items() if value is not None}
        return jwt.encode(kept, self.keys[key_id], algorithm=alg, headers={"kid": key_id})

    async def public_keys(self) -> Sequence[PyJWK]:
        return [PyJWK(self.public(key_id)) for key_id in self.keys]

    def sign(self, header: dict[str, Any], claims: dict[str, Any]) -> str:
        """Sign any header and claims, which PyJWT would refuse."""
        parts = [json.dumps(part).encode() for part in ({"alg": "RS256"} | header, claims)]
        signed = b".".join(base64url_encode(part) for part in parts)
        signer = RSAAlgorithm(RSAAlgorithm.SHA256)
        signature = signer.sign(signed, next(iter(self.keys.values())))
        return b".".join((signed, base64url_encode(signature))).decode()

    def document(self, path: str) -> dict[str, Any]:
        if path == "/jwks":
            return {"keys": [self.public(key_id) for key_id in self.keys]}
        return {"issuer": self.url, "jwks_uri": f"{self.url}/jwks"} | self.alters


@asynccontextmanager
async def run_issuer() -> AsyncIterator[Issuer]:
    """Serve an issuer over HTTP on loopback."""
    issuer = Issuer()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        issuer.num_fetches += 1
        status = "503 Away" if issuer.is_away else "200 OK"
        body = json.dumps(issuer.document(head.split()[1])).encode()
        head = f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    issuer.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield issuer


def forge(token: str, *, header: dict[str, Any] | None = None, **claims: Any) -> str:
    """Change the header or claims of a token, and keep its signature."""
    parts = token.split(".")
    for number, changes in enumerate((header or {}, claims)):
        padded = parts[number] + "=" * (-len(parts[number]) % 4)
        values = json.loads(base64.urlsafe_b64decode(padded)) | changes
        text = base64.urlsafe_b64encode(json.dumps(values).encode()).decode()
        parts[number] = text.rstrip("=")
    return ".".join(parts)
