"""Bindings to llama.cpp; no other package imports `llama_cpp`."""
