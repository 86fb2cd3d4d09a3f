"""An ordinary program of `client.beta.assistants` and `client.beta.threads`: nothing in it knows of
Corral. It prints what it saw."""

import json
import sys

import openai
from openai import OpenAI

client = OpenAI(max_retries=0)
model = client.models.list().data[0].id
seen: dict[str, object] = {"release": openai.__version__, "model": model}

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
seen["created"] = assistant.to_dict()
seen["retrieved"] = client.beta.assistants.retrieve(assistant.id).to_dict()
changed = client.beta.assistants.update(
    assistant.id, name="History Tutor", temperature=0.25, response_format="auto"
)
seen["changed"] = changed.to_dict()
others = [client.beta.assistants.create(model=model, name=str(number)) for number in range(4)]
seen["pages"] = [found.name for found in client.beta.assistants.list(limit=2, order="asc")][-5:]
seen["deleted"] = client.beta.assistants.delete(assistant.id).to_dict()
try:
    client.beta.assistants.retrieve(assistant.id)
except openai.NotFoundError as error:
    seen["gone"] = error.message.replace(assistant.id, "asst_x")
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
seen["thread"] = thread.to_dict()
seen["same thread"] = client.beta.threads.retrieve(thread.id).to_dict() == thread.to_dict()
seen["thread changed"] = client.beta.threads.update(thread.id, metadata={"k": "v"}).metadata

# ---- messages

message = client.beta.threads.messages.create(
    thread.id,
    role="user",
    content="And this one?",
    attachments=[{"file_id": file.id, "tools": []}],
    metadata={"n": "1"},
)
seen["message"] = message.to_dict()
seen["file"] = file.id
listed = client.beta.threads.messages.list(thread.id, limit=2, order="asc")
seen["messages"] = [found.to_dict()["content"] for found in listed]
before = client.beta.threads.messages.list(thread.id, before=listed.data[1].id, order="asc")
seen["before"] = [found.content[0].text.value for found in before]
updated = client.beta.threads.messages.update(message.id, thread_id=thread.id, metadata={"n": "2"})
seen["message changed"] = updated.metadata
same = client.beta.threads.messages.retrieve(message.id, thread_id=thread.id)
seen["message retrieved"] = same.metadata
gone = client.beta.threads.messages.delete(message.id, thread_id=thread.id)
seen["message deleted"] = (gone.object, gone.deleted, gone.id == message.id)
seen["left"] = len(list(client.beta.threads.messages.list(thread.id)))
try:
    client.beta.threads.messages.create(thread.id, role="user", content="")
except openai.BadRequestError as error:
    seen["empty"] = (error.type, error.code, error.param)
deleted = client.beta.threads.delete(thread.id)
seen["thread deleted"] = (deleted.object, deleted.deleted)
try:
    client.beta.threads.messages.list(thread.id)
except openai.NotFoundError as error:
    seen["thread gone"] = error.message.replace(thread.id, "thread_x")

json.dump(seen, sys.stdout)
