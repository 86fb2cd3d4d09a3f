"""LangChain with chat completions (langchain-openai)."""

import asyncio

import openai
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

from tests.clients.matrix.scenario import ANSWER, BASE_URL, KEY, MODEL, QUESTION, WEATHER, run

model = ChatOpenAI(model=MODEL, base_url=BASE_URL, api_key=KEY, temperature=0, max_tokens=100)


class City(BaseModel):
    """A city."""

    name: str


@tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


def answer() -> object:
    return ANSWER in model.invoke(QUESTION).text


def stream() -> object:
    pieces = list(model.stream(QUESTION, stream_usage=True))
    whole = sum(pieces[1:], pieces[0])
    return ANSWER in whole.text and whole.usage_metadata["total_tokens"] > 0


def tools() -> object:
    history = [HumanMessage(WEATHER)]
    history.append(model.bind_tools([get_weather], tool_choice="get_weather").invoke(history))
    call = history[-1].tool_calls[0]
    history.append(ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"]))
    history.append(model.bind_tools([get_weather]).invoke(history))
    return model.invoke([*history, HumanMessage("Thank you!")]).response_metadata["finish_reason"]


def structured() -> object:
    by_schema = model.with_structured_output(City, method="json_schema").invoke("Name a city.")
    by_call = model.with_structured_output(City, method="function_calling").invoke("Name a city.")
    return isinstance(by_schema, City) and isinstance(by_call, City)


def error() -> object:
    try:
        ChatOpenAI(model="no-such-model", base_url=BASE_URL, api_key=KEY).invoke("?")
    except openai.NotFoundError:
        return True
    return False


async def cancel() -> object:
    async for _ in model.astream(QUESTION):
        break
    return answer()


asyncio.run(run(answer, stream, tools, structured, error, cancel))
