"""Routes of llama-server and vLLM outside OpenAI's API."""
