"""A program with `client.beta.threads.runs` and its helpers, without anything specific to Corral.
Prints the results as JSON."""

import json
import sys
from typing import Any

import openai
from openai import AssistantEventHandler, OpenAI

client = OpenAI(max_retries=0)
model = client.models.list().data[0].id
results: dict[str, Any] = {"release": openai.__version__, "model": model}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather for a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
CAPITAL = "What is the capital of France?"
WEATHER_QUESTION = "What is the weather in Paris?"
runs = client.beta.threads.runs
assistant = client.beta.assistants.create(model=model, temperature=0, name="Helper")
weatherman = client.beta.assistants.create(model=model, temperature=0, tools=[WEATHER])  # type: ignore[list-item]


class Handler(AssistantEventHandler):
    """Records the calls of an event handler."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[str] = []
        self.text = ""
        self.done: list[str] = []

    def on_event(self, event: Any) -> None:
        """Record the names of events without repetitions."""
        if not self.events or self.events[-1] != event.event:
            self.events.append(event.event)

    def on_text_delta(self, delta: Any, snapshot: Any) -> None:
        """Append a delta of the text."""
        self.text += delta.value

    def on_message_done(self, message: Any) -> None:
        """Record the text of a finished message."""
        self.done.append(message.content[0].text.value)


def read_answer(thread_id: str, run_id: str) -> str:
    """Read the text of the message of a run."""
    [message] = client.beta.threads.messages.list(thread_id, run_id=run_id)
    return message.content[0].text.value  # type: ignore[union-attr]


# ---- create_and_poll

thread = client.beta.threads.create(messages=[{"role": "user", "content": CAPITAL}])
polled = runs.create_and_poll(thread_id=thread.id, assistant_id=assistant.id, metadata={"n": "1"})
results["polled"] = polled.to_dict()
results["answer"] = read_answer(thread.id, polled.id)
steps = list(runs.steps.list(polled.id, thread_id=thread.id))
results["steps"] = [step.to_dict() for step in steps]
step = runs.steps.retrieve(steps[0].id, thread_id=thread.id, run_id=polled.id)
results["same step"] = step.to_dict() == steps[0].to_dict()
updated = runs.update(polled.id, thread_id=thread.id, metadata={"n": "2"})
results["updated"] = updated.metadata
results["listed"] = [run.id == polled.id for run in runs.list(thread.id)]

# ---- stream

handler = Handler()
with runs.stream(
    thread_id=thread.id,
    assistant_id=assistant.id,
    additional_messages=[{"role": "user", "content": "What is the capital of Italy?"}],
    event_handler=handler,
) as stream:
    stream.until_done()
results["streamed"] = {"events": handler.events, "text": handler.text, "done": handler.done}

# ---- functions

asked = client.beta.threads.create(messages=[{"role": "user", "content": WEATHER_QUESTION}])
waiting = runs.create_and_poll(thread_id=asked.id, assistant_id=weatherman.id)
action = waiting.required_action
results["waiting"] = waiting.to_dict()
calls = action.submit_tool_outputs.tool_calls if action else []
outputs: Any = [{"tool_call_id": call.id, "output": "18 degrees and sunny"} for call in calls]
for refused_call in (
    lambda: client.beta.threads.messages.create(asked.id, role="user", content="Hello?"),
    lambda: runs.create(thread_id=asked.id, assistant_id=assistant.id),
    lambda: runs.submit_tool_outputs(waiting.id, thread_id=asked.id, tool_outputs=[]),
):
    try:
        refused_call()
    except openai.BadRequestError as error:
        results.setdefault("refused", []).append((error.body["message"], error.code))  # type: ignore[index]
outputs_handler = Handler()
with runs.submit_tool_outputs_stream(
    run_id=waiting.id, thread_id=asked.id, tool_outputs=outputs, event_handler=outputs_handler
) as stream:
    stream.until_done()
results["submitted"] = {
    "events": outputs_handler.events,
    "text": outputs_handler.text,
    "done": outputs_handler.done,
}
again = client.beta.threads.create(messages=[{"role": "user", "content": WEATHER_QUESTION}])
second = runs.create_and_poll(thread_id=again.id, assistant_id=weatherman.id)
action = second.required_action
calls = action.submit_tool_outputs.tool_calls if action else []
outputs = [{"tool_call_id": call.id, "output": "18 degrees and sunny"} for call in calls]
finished = runs.submit_tool_outputs_and_poll(
    run_id=second.id, thread_id=again.id, tool_outputs=outputs
)
results["submitted and polled"] = (finished.status, read_answer(again.id, second.id))

# ---- thread and run at once

both = client.beta.threads.create_and_run_poll(
    assistant_id=assistant.id, thread={"messages": [{"role": "user", "content": CAPITAL}]}
)
results["at once"] = (both.status, read_answer(both.thread_id, both.id))
first = Handler()
with client.beta.threads.create_and_run_stream(
    assistant_id=assistant.id,
    thread={"messages": [{"role": "user", "content": CAPITAL}]},
    event_handler=first,
) as stream:
    stream.until_done()
results["streamed at once"] = {"events": first.events, "text": first.text}

# ---- cancel

third = client.beta.threads.create_and_run_poll(
    assistant_id=weatherman.id, thread={"messages": [{"role": "user", "content": WEATHER_QUESTION}]}
)
results["cancelled"] = runs.cancel(third.id, thread_id=third.thread_id).status
try:
    runs.cancel(third.id, thread_id=third.thread_id)
except openai.BadRequestError as error:
    results["twice"] = error.body["message"]  # type: ignore[index]

json.dump(results, sys.stdout)
