"""Text of documents, extracted in sandboxed child processes."""
