"""`vllm.grpc.engine.VllmEngine`, the gRPC service by which routers such as SMG use engines."""
