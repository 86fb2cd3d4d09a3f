"""What the recipes of the Makefile run."""
