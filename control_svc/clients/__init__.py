"""gRPC: other services as the use cases need them."""
