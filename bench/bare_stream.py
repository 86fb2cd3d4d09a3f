"""Baseline for file transfers: a gRPC server that hashes the bytes it receives, or sends bytes.

python -m bench.bare_stream PORT
"""

import hashlib
import os
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
import uvloop

SERVICE = "bench.BareStream"
UP, DOWN = f"/{SERVICE}/Up", f"/{SERVICE}/Down"


async def up(chunks: AsyncIterator[bytes], _context: Any) -> bytes:
    """Receive bytes and return their SHA-256 digest in hex."""
    digest = hashlib.sha256()
    async for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest().encode()


async def down(request: bytes, _context: Any) -> AsyncIterator[bytes]:
    """Send random bytes. The request is "SIZE CHUNK": total bytes and bytes per message."""
    size_bytes, chunk_bytes = map(int, request.split())
    chunk = os.urandom(chunk_bytes)
    for _ in range(size_bytes // chunk_bytes):
        yield chunk


async def serve(port: int) -> None:
    """Serve until killed."""
    server = grpc.aio.server()
    handlers: dict[str, Any] = {
        "Up": grpc.stream_unary_rpc_method_handler(up),
        "Down": grpc.unary_stream_rpc_method_handler(down),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
