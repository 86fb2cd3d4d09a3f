"""A program with `client.beta.assistants` and `client.beta.threads`, without anything specific to
Corral. Prints the results as JSON."""

import json
import sys

import openai
from openai import OpenAI

client = OpenAI(max_retries=0)
model = client.models.list().data[0].id
results: dict[str, object] = {"release": openai.__version__, "model": model}

# ---- assistants

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a place.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
    },
}
assistant = client.beta.assistants.create(
    model=model,
    name="Math Tutor",
    description="It knows sums.",
    instructions="You are a personal math tutor.",
    tools=[TOOL, {"type": "file_search"}],
    metadata={"team": "maths"},
    temperature=0.5,
    top_p=0.9,
    response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {"a": 1}}},
)
results["created"] = assistant.to_dict()
results["retrieved"] = client.beta.assistants.retrieve(assistant.id).to_dict()
changed = client.beta.assistants.update(
    assistant.id, name="History Tutor", temperature=0.25, response_format="auto"
)
results["changed"] = changed.to_dict()
others = [client.beta.assistants.create(model=model, name=str(number)) for number in range(4)]
results["pages"] = [item.name for item in client.beta.assistants.list(limit=2, order="asc")][-5:]
results["deleted"] = client.beta.assistants.delete(assistant.id).to_dict()
try:
    client.beta.assistants.retrieve(assistant.id)
except openai.NotFoundError as error:
    results["gone"] = error.message.replace(assistant.id, "asst_x")
for other in others:
    client.beta.assistants.delete(other.id)

# ---- threads

file = client.files.create(file=("notes.txt", b"The answer is 42."), purpose="assistants")
thread = client.beta.threads.create(
    messages=[
        {"role": "user", "content": "What is the answer?"},
        {"role": "assistant", "content": "Which answer?", "metadata": {"mood": "puzzled"}},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "That of my file."},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
                {"type": "image_file", "image_file": {"file_id": file.id, "detail": "low"}},
            ],
        },
    ],
    metadata={"user": "abc123"},
)
results["thread"] = thread.to_dict()
results["same thread"] = client.beta.threads.retrieve(thread.id).to_dict() == thread.to_dict()
results["thread changed"] = client.beta.threads.update(thread.id, metadata={"k": "v"}).metadata

# ---- messages

message = client.beta.threads.messages.create(
    thread.id,
    role="user",
    content="And this one?",
    attachments=[{"file_id": file.id, "tools": []}],
    metadata={"n": "1"},
)
results["message"] = message.to_dict()
results["file"] = file.id
listed = client.beta.threads.messages.list(thread.id, limit=2, order="asc")
results["messages"] = [item.to_dict()["content"] for item in listed]
before = client.beta.threads.messages.list(thread.id, before=listed.data[1].id, order="asc")
results["before"] = [item.content[0].text.value for item in before]
updated = client.beta.threads.messages.update(message.id, thread_id=thread.id, metadata={"n": "2"})
results["message changed"] = updated.metadata
same = client.beta.threads.messages.retrieve(message.id, thread_id=thread.id)
results["message retrieved"] = same.metadata
gone = client.beta.threads.messages.delete(message.id, thread_id=thread.id)
results["message deleted"] = (gone.object, gone.deleted, gone.id == message.id)
results["left"] = len(list(client.beta.threads.messages.list(thread.id)))
try:
    client.beta.threads.messages.create(thread.id, role="user", content="")
except openai.BadRequestError as error:
    results["empty"] = (error.type, error.code, error.param)
deleted = client.beta.threads.delete(thread.id)
results["thread deleted"] = (deleted.object, deleted.deleted)
try:
    client.beta.threads.messages.list(thread.id)
except openai.NotFoundError as error:
    results["thread gone"] = error.message.replace(thread.id, "thread_x")

json.dump(results, sys.stdout)
