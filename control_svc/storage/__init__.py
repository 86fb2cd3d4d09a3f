"""The ports of the domain on a real database and a real disk."""
