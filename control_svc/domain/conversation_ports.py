"""What the use cases of conversations need from the outside."""
