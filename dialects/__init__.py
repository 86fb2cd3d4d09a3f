"""HTTP APIs, one folder each: JSON to Corral's protos and back, for bodies and batch lines."""
