"""A program with LangChain's Ollama classes: an answer, a stream, a tool with its result,
structured output, and embeddings."""

import json
import os
import sys

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_ollama import ChatOllama, OllamaEmbeddings
from pydantic import BaseModel

HOST = os.environ["OPENAI_BASE_URL"].removesuffix("/v1")
model = ChatOllama(model="demo-chat", base_url=HOST, temperature=0, num_predict=200, num_ctx=2048)
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
question = HumanMessage("What is the weather in Paris?")
quick = ChatOllama(
    model="demo-chat", base_url=HOST, temperature=0, num_predict=200, reasoning=False
)
chooser = quick.bind_tools([get_weather])
called = chooser.invoke([question])
results = [
    ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])
    for call in called.tool_calls
]
answered = chooser.invoke([question, called, *results])
form = quick.with_structured_output(City, method="json_schema").invoke("Name a city.")
vectors = OllamaEmbeddings(model="demo-chat", base_url=HOST).embed_documents(["a", "b"])

json.dump(
    {
        "same_text": streamed == answer.text,
        "tokens": answer.usage_metadata["total_tokens"] > 0,
        "tools": [call["name"] for call in called.tool_calls],
        "answered": bool(answered.text),
        "form": isinstance(form, City),
        "vectors": len(vectors),
    },
    sys.stdout,
)
