"""Saved sequences in files: their format, what they need of whoever restores them, their folder."""
