"""Vocabularies in Hugging Face's format; no other package imports `tokenizers`."""
