"""A program with responses and conversations, for every release of the SDK that has them."""

import json
import sys

import openai

MODEL = "demo-chat"
CAPITAL = "What is the capital of France?"
client = openai.OpenAI()

first = client.responses.create(model=MODEL, input=CAPITAL, temperature=0)
second = client.responses.create(
    model=MODEL, input="Thank you!", previous_response_id=first.id, temperature=0
)
with client.responses.stream(model=MODEL, input=CAPITAL, temperature=0) as stream:
    kinds = [event.type for event in stream]
    streamed = stream.get_final_response()
conversation = client.conversations.create(metadata={"a": "b"})
client.responses.create(model=MODEL, input=CAPITAL, conversation=conversation.id, temperature=0)
items = list(client.conversations.items.list(conversation.id, order="asc"))
background = client.responses.create(model=MODEL, input=CAPITAL, background=True, temperature=0)
with client.responses.retrieve(background.id, stream=True) as followed:
    last = [event.type for event in followed][-1]
client.responses.delete(first.id)
try:
    client.responses.retrieve(first.id)
    gone = False
except openai.NotFoundError:
    gone = True

json.dump(
    {
        "release": openai.__version__,
        "same_text": streamed.output_text == first.output_text,
        "chained": second.previous_response_id == first.id,
        "first_event": kinds[0],
        "last_events": [kinds[-1], last],
        "roles": [item.to_dict().get("role") for item in items],
        "metadata": conversation.metadata,
        "gone": gone,
    },
    sys.stdout,
)
