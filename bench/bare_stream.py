"""The least that a service can do with the bytes of a file: take them over gRPC and hash them, or
send them. Files are measured beside it.

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
    """Take bytes; answer their digest."""
    digest = hashlib.sha256()
    async for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest().encode()


async def down(request: bytes, _context: Any) -> AsyncIterator[bytes]:
    """Send "SIZE CHUNK" bytes: so many in all, so many in a message."""
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
