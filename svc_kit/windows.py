"""How much either end of a connection takes before its reader asks for it.

gRPC measures each connection and lets the windows of its streams grow with what it finds, to many
megabytes where a disk is slower than the network: the memory of one large upload, and of each
beside it. Ours are fixed, at what a gigabit takes in eight milliseconds.
"""

from typing import Final

WINDOW_BYTES: Final = 1024 * 1024
WINDOW_OPTIONS: Final = (
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
)
"""Of every server and every channel; a message that is larger is taken all the same."""
