"""Routes of llama-server and vLLM outside OpenAI's API, which tools of both call."""
