"""A program with Ollama's client: models are pulled, listed, shown, copied, used and deleted."""

import json
import os
import sys

import ollama

NAME = "hf.co/owner/models:Q8_0"
client = ollama.Client(host=os.environ["OPENAI_BASE_URL"].removesuffix("/v1"))


def refusal(model: str, words: str = "") -> list[object]:
    """Status of a pull that is refused, and these words if its text has them."""
    try:
        client.pull(model)
    except ollama.ResponseError as problem:
        return [problem.status_code, words if words in problem.error else problem.error]
    return []


before = {each.model for each in client.list().models}
lines = list(client.pull(NAME, stream=True))
again = client.pull(NAME).status
shown = client.show(NAME).details.family
copied = client.copy(NAME, "mine").status
listed = sorted({str(each.model) for each in client.list().models} - before)
answer = client.generate(
    "mine", "What is the capital of France?", options={"temperature": 0, "num_predict": 200}
)
deleted = [client.delete("mine").status, client.delete(NAME).status]
try:
    client.show(NAME)
    missing = 200
except ollama.ResponseError as problem:
    missing = problem.status_code

json.dump(
    {
        "statuses": [lines[0].status, lines[-1].status],
        "digests": all(
            str(line.status).startswith(("pulling ", "verifying ")) for line in lines[1:-1]
        ),
        "again": again,
        "shown": shown,
        "copied": copied,
        "listed": listed,
        "answered": bool(answer.response),
        "deleted": deleted,
        "left": sorted({str(each.model) for each in client.list().models} - before),
        "missing": missing,
        "registry": refusal("llama3.2", "write hf.co/OWNER/REPOSITORY:QUANTIZATION"),
        "quantization": refusal("hf.co/owner/models:IQ1_S", "demo-Q8_0.gguf"),
    },
    sys.stdout,
)
