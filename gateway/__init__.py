"""Stateless HTTP gateway: serves OpenAI's API by gRPC calls of the other services."""
