"""OpenAI's Assistants API: request bodies and objects of assistants, threads, messages and runs."""
