"""What the use cases of operators need from the database: projects, keys and usage."""
