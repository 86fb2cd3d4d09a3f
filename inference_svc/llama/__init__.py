"""The only importers of llama_cpp."""
