"""Parsers of assistant output: content, reasoning, tool calls."""
