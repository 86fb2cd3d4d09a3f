"""What the use cases of files and uploads need from the database."""
