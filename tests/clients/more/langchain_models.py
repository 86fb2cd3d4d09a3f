"""LangChain's classes for servers, by the name of their package."""

import asyncio
import sys
from typing import Any

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from pydantic import BaseModel

from tests.clients.matrix.scenario import ANSWER, BASE_URL, KEY, MODEL, QUESTION, WEATHER, run

ROOT = BASE_URL.removesuffix("/v1")
PACKAGE = sys.argv[1]


def make_model(name: str = MODEL, max_tokens: int = 100) -> Any:
    """A model of the package; its import is the package's."""
    options: dict[str, Any] = {"model": name, "max_tokens": max_tokens, "temperature": 0}
    match PACKAGE:
        case "langchain-anthropic":
            from langchain_anthropic import ChatAnthropic

            return ChatAnthropic(base_url=ROOT, api_key=KEY, **options)
        case "langchain-groq":
            from langchain_groq import ChatGroq

            return ChatGroq(base_url=ROOT, api_key=KEY, **options)
        case "langchain-mistralai":
            from langchain_mistralai import ChatMistralAI

            return ChatMistralAI(base_url=BASE_URL, api_key=KEY, **options)
        case "langchain-deepseek":
            from langchain_deepseek import ChatDeepSeek

            return ChatDeepSeek(api_base=BASE_URL, api_key=KEY, **options)
        case "langchain-xai":
            from langchain_xai import ChatXAI

            return ChatXAI(xai_api_base=BASE_URL, api_key=KEY, **options)
        case "langchain-together":
            from langchain_together import ChatTogether

            return ChatTogether(base_url=BASE_URL, api_key=KEY, **options)
        case "langchain-cerebras":
            from langchain_cerebras import ChatCerebras

            return ChatCerebras(base_url=BASE_URL, api_key=KEY, **options)
        case "langchain-ollama":
            from langchain_ollama import ChatOllama

            return ChatOllama(
                model=name, base_url=ROOT, num_predict=max_tokens, temperature=0, reasoning=False
            )
        case "langchain-openai":
            from langchain_openai import ChatOpenAI

            return ChatOpenAI(base_url=BASE_URL, api_key=KEY, stream_usage=True, **options)
        case _:
            from langchain_openai import AzureChatOpenAI

            version = "2024-10-21"
            return AzureChatOpenAI(
                azure_endpoint=ROOT, azure_deployment=name, api_key=KEY, api_version=version,
                max_tokens=max_tokens, temperature=0,
            )  # fmt: skip


model = make_model()


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
    pieces = list(model.stream(QUESTION))
    whole = sum(pieces[1:], pieces[0])
    has_usage = PACKAGE != "langchain-openai" or whole.usage_metadata["total_tokens"] > 0
    return ANSWER in whole.text and has_usage


def tools() -> object:
    history: list[Any] = [HumanMessage(WEATHER)]
    choice = {} if PACKAGE == "langchain-ollama" else {"tool_choice": "any"}
    history.append(model.bind_tools([get_weather], **choice).invoke(history))
    call = history[-1].tool_calls[0]
    history.append(ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"]))
    history.append(model.bind_tools([get_weather]).invoke(history))
    return model.bind_tools([get_weather]).invoke([*history, HumanMessage("Thank you!")])


def structured() -> object:
    methods = ["function_calling"]
    if PACKAGE in ("azure", "langchain-ollama", "langchain-anthropic", "langchain-cerebras"):
        methods = ["json_schema"]
    if PACKAGE == "langchain-openai":
        methods.append("json_schema")
    forms = [model.with_structured_output(City, method=method) for method in methods]
    return all(isinstance(form.invoke("Name a city."), City) for form in forms)


def error() -> object:
    try:
        make_model("no-such-model").invoke("?")
    except Exception as problem:
        return "no-such-model" in str(problem)
    return False


async def cancel() -> object:
    pieces = make_model(max_tokens=500).astream(QUESTION)
    async for _ in pieces:
        break
    await pieces.aclose()
    return answer()


asyncio.run(run(answer, stream, tools, structured, error, cancel))
