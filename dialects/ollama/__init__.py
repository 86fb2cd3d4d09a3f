"""Ollama's HTTP API, as its clients use it: version 0.33 of its server."""
