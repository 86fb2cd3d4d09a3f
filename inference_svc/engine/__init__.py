"""The engine: scheduling, slots, stopping, one step loop. Pure: no grpc, no llama_cpp, no asyncio,
no clock of its own.

It never sees a template or a socket. It turns `SequenceRequest`s into `Event`s through a `Backend`.
"""
