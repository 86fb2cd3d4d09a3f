"""LlamaIndex's `OpenAILike`."""

import asyncio

import openai
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

from tests.clients.matrix.scenario import ANSWER, BASE_URL, KEY, MODEL, QUESTION, WEATHER, run


def client(model: str = MODEL) -> OpenAILike:
    return OpenAILike(
        model=model,
        api_base=BASE_URL,
        api_key=KEY,
        is_chat_model=True,
        is_function_calling_model=True,
        temperature=0,
        max_tokens=100,
        max_retries=0,
    )


llm = client()


class City(BaseModel):
    """A city."""

    name: str


def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


TOOL = FunctionTool.from_defaults(get_weather)


def answer() -> object:
    return ANSWER in llm.complete(QUESTION).text


def stream() -> object:
    pieces = list(llm.stream_chat([ChatMessage(QUESTION)]))
    return ANSWER in pieces[-1].message.content


def tools() -> object:
    history = [ChatMessage(WEATHER)]
    first = llm.chat_with_tools([TOOL], chat_history=history, tool_required=True)
    call = llm.get_tool_calls_from_response(first)[0]
    result = get_weather(**call.tool_kwargs)
    extra = {"tool_call_id": call.tool_id, "name": call.tool_name}
    history += [first.message, ChatMessage(result, role="tool", additional_kwargs=extra)]
    second = llm.chat_with_tools([TOOL], chat_history=history)
    history += [second.message, ChatMessage("Thank you!")]
    return llm.chat_with_tools([TOOL], chat_history=history)


def structured() -> object:
    form = llm.as_structured_llm(City).complete("Name a city.")
    return isinstance(form.raw, City)


def error() -> object:
    try:
        client("no-such-model").complete("?")
    except openai.NotFoundError:
        return True
    return False


async def cancel() -> object:
    async for _ in await llm.astream_chat([ChatMessage(QUESTION)]):
        break
    return answer()


asyncio.run(run(answer, stream, tools, structured, error, cancel))
