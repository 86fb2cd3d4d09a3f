"""OpenAI's HTTP API in, gRPC out. Stateless: it parses, checks, calls and frames."""
