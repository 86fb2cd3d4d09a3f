"""A program with OpenAI's Agents SDK: a tool, a session in a conversation, a stream."""

import asyncio
import json
import sys

from agents import (
    Agent,
    ModelSettings,
    OpenAIConversationsSession,
    Runner,
    function_tool,
    set_tracing_disabled,
)

MODEL = "demo-chat"
set_tracing_disabled(True)
cities: list[str] = []


@function_tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    cities.append(city)
    return "sunny"


async def main() -> None:
    """Run the agents and print the results as JSON."""
    session = OpenAIConversationsSession()
    plain = Agent(
        name="guide", model=MODEL, model_settings=ModelSettings(temperature=0, max_tokens=64)
    )
    first = await Runner.run(plain, "What is the capital of France?", session=session)
    streamed = Runner.run_streamed(plain, "Thank you!", session=session)
    kinds = [event.type async for event in streamed.stream_events()]
    forced = ModelSettings(temperature=0, tool_choice="get_weather", max_tokens=200)
    caller = Agent(
        name="weather",
        model=MODEL,
        tools=[get_weather],
        model_settings=forced,
        tool_use_behavior="stop_on_first_tool",
    )
    called = await Runner.run(caller, "What is the weather in Paris?")
    json.dump(
        {
            "text": first.final_output,
            "streamed": bool(kinds) and isinstance(streamed.final_output, str),
            "items": len(await session.get_items()),
            "called": len(cities),
            "output": called.final_output,
        },
        sys.stdout,
    )


asyncio.run(main())
