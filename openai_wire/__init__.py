"""OpenAI's JSON to Corral's protos and back, for HTTP bodies and for batch lines."""
