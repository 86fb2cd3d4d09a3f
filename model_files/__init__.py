"""Reads and validates untrusted GGUF files. Used by the control and the inference service."""
