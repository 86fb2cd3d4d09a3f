"""Trains the projector that lets the bundled demo model see: `make demo-vision`."""
