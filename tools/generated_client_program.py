"""Uses a client that openapi-python-client generated; runs in an environment of its own.

Arguments: the package's parent folder, the server's URL, and a model. Writes `found.json` into the
folder.
"""

import importlib
import json
import pkgutil
import sys
from pathlib import Path
from typing import Any

folder, url, model = sys.argv[1:]
sys.path.insert(0, folder)
package: Any = importlib.import_module("generated")
broken = []
for module in pkgutil.walk_packages(package.__path__, "generated."):
    try:
        importlib.import_module(module.name)
    except (ImportError, NameError):
        broken.append(module.name)


def operation(name: str) -> Any:
    """A module of the client."""
    return importlib.import_module(f"generated.api.default.{name}")


models: Any = importlib.import_module("generated.models")
client = package.Client(base_url=url)
messages = [{"role": "user", "content": "What is the capital of France?"}]
chat = operation("create_chat_completion_v1_chat_completions_post")
body = models.ChatCompletionBody.from_dict({"model": model, "messages": messages, "temperature": 0})
answer = chat.sync(client=client, body=body)
body.model = "none"
refused = chat.sync_detailed(client=client, body=body)
response = operation("create_response_v1_responses_post").sync(
    client=client, body=models.ResponseBody.from_dict({"model": model, "input": messages})
)
message = operation("create_message_v1_messages_post").sync(
    client=client,
    body=models.CreateMessageBody.from_dict(
        {"model": model, "messages": messages, "max_tokens": 50}
    ),
)
found = {
    "broken": broken,
    "answer": answer.choices[0].message.content,
    "error": [int(refused.status_code), refused.parsed.error.code],
    "response": [response.status, type(response.output[-1]).__name__],
    "message": [message.role, message.stop_reason],
    "models": [each.id for each in operation("list_models_v1_models_get").sync(client=client).data],
}
Path(folder, "found.json").write_text(json.dumps(found), encoding="utf-8")
