"""Distributed traces: the current span, and its export over OTLP."""
