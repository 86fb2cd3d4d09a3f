"""The control service: all durable state, as gRPC over a database and a store of bytes."""
