"""Schemas of responses and of streamed events, inferred from the code that writes them."""
