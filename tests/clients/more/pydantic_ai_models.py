"""pydantic-ai's models, by the name of their API."""

import asyncio
import sys
from typing import Any

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput

from tests.clients.matrix.scenario import ANSWER, BASE_URL, KEY, MODEL, QUESTION, WEATHER, run

ROOT = BASE_URL.removesuffix("/v1")
KIND = sys.argv[1]


def make_model(name: str = MODEL) -> Any:
    """A model; its import is that of the API's package."""
    match KIND:
        case "anthropic":
            from pydantic_ai.models.anthropic import AnthropicModel
            from pydantic_ai.providers.anthropic import AnthropicProvider

            return AnthropicModel(name, provider=AnthropicProvider(base_url=ROOT, api_key=KEY))
        case "groq":
            from pydantic_ai.models.groq import GroqModel
            from pydantic_ai.providers.groq import GroqProvider

            return GroqModel(name, provider=GroqProvider(base_url=ROOT, api_key=KEY))
        case "mistral":
            from pydantic_ai.models.mistral import MistralModel
            from pydantic_ai.providers.mistral import MistralProvider

            return MistralModel(name, provider=MistralProvider(base_url=ROOT, api_key=KEY))
        case "huggingface":
            from huggingface_hub import AsyncInferenceClient
            from pydantic_ai.models.huggingface import HuggingFaceModel
            from pydantic_ai.providers.huggingface import HuggingFaceProvider

            client = AsyncInferenceClient(base_url=BASE_URL, api_key=KEY)
            provider = HuggingFaceProvider(hf_client=client, api_key=KEY)
            return HuggingFaceModel(name, provider=provider)
        case "ollama":
            from pydantic_ai.models.ollama import OllamaModel
            from pydantic_ai.providers.ollama import OllamaProvider

            return OllamaModel(name, provider=OllamaProvider(base_url=BASE_URL, api_key=KEY))
        case _:
            from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
            from pydantic_ai.providers.openai import OpenAIProvider

            kind = OpenAIChatModel if KIND == "chat" else OpenAIResponsesModel
            return kind(name, provider=OpenAIProvider(base_url=BASE_URL, api_key=KEY))


model = make_model()
settings: Any = {"temperature": 0, "max_tokens": 100}
plain = Agent(model, model_settings=settings)
cities: list[str] = []


class City(BaseModel):
    """A city."""

    name: str


def get_weather(city: str) -> str:
    """The weather of a city."""
    cities.append(city)
    return f"sunny in {city}"


async def answer() -> object:
    return ANSWER in (await plain.run(QUESTION)).output


async def stream() -> object:
    async with plain.run_stream(QUESTION) as result:
        texts = [each async for each in result.stream_text(delta=True, debounce_by=None)]
        return ANSWER in "".join(texts) and (KIND != "chat" or result.usage.output_tokens > 0)


async def tools() -> object:
    agent = Agent(model, tools=[get_weather], model_settings=settings)
    first = await agent.run(WEATHER)
    second = await agent.run("Thank you!", message_history=first.all_messages())
    return bool(cities) and bool(second.output)


async def structured() -> object:
    kinds: Any = {"ollama": NativeOutput, "responses": NativeOutput, "chat": ToolOutput}
    output = kinds[KIND](City) if KIND in kinds else City
    agent = Agent(model, output_type=output, model_settings=settings)
    first = await agent.run("Name a city.")
    if KIND != "chat":
        return isinstance(first.output, City)
    second = await agent.run("Name another city.", message_history=first.all_messages())
    return isinstance(first.output, City) and isinstance(second.output, City)


async def error() -> object:
    try:
        await Agent(make_model("no-such-model")).run("?")
    except Exception as problem:
        return "no-such-model" in str(problem)
    return False


async def cancel() -> object:
    async with plain.run_stream(QUESTION) as result:
        async for _ in result.stream_text(delta=True, debounce_by=None):
            break
    return await answer()


asyncio.run(run(answer, stream, tools, structured, error, cancel))
