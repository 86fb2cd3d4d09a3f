"""What the use cases of assistants, threads and messages need from the outside."""
