"""Model files: what they are, where they come from, how much memory they get."""
