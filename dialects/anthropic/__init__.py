"""Anthropic's Messages API: requests to protos, and protos to its objects, events and errors."""
