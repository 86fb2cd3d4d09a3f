"""Servicers and the one place where protos and the engine's types meet."""
