"""A program with LangChain's Responses mode: a response, a stream, a tool, structured output, and
a chain of stored responses."""

import json
import sys

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

model = ChatOpenAI(model="demo-chat", use_responses_api=True, temperature=0, max_tokens=200)
CAPITAL = "What is the capital of France?"


@tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


class City(BaseModel):
    """A city."""

    name: str


answer = model.invoke(CAPITAL)
streamed = "".join(chunk.text for chunk in model.stream(CAPITAL))
chained = model.invoke("Thank you!", previous_response_id=answer.response_metadata["id"])
called = model.bind_tools([get_weather], tool_choice="get_weather").invoke("Weather in Paris?")
form = model.with_structured_output(City, method="json_schema").invoke("Name a city.")

json.dump(
    {
        "text": answer.text,
        "same_text": streamed == answer.text,
        "chained": bool(chained.text),
        "tools": [call["name"] for call in called.tool_calls],
        "form": isinstance(form, City),
        "tokens": answer.usage_metadata["total_tokens"] > 0,
    },
    sys.stdout,
)
