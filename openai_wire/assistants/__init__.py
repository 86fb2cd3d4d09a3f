"""OpenAI's Assistants: bodies of assistants, threads and messages in, objects out."""
