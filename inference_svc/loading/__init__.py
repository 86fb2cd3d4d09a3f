"""What models are made of: from settings and files to fronts and engines."""
