"""Loaded models: every one has an engine process of its own, which comes and goes."""
