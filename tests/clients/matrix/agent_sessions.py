"""A session of a coding agent over the real engine, with a restart of the server in it.

The model's turns are scripted: it reads files, one after the other, and then says so; the agent is
started once more after the restart, and goes on if it can. Prints how long the prompts were, and
the least share that was reused of what had not changed in them, as JSON. Arguments: the name of an
agent, and the folder with its executable (default: that of the packages of tests/clients).
"""

import asyncio
import json
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from corral.inference.v1 import chat_pb2
from corral.inference.v1 import inference_service_pb2 as pb

from tests.support.coding_agents import CodingAgent, prepare_home
from tests.support.scripted_model import ScriptedModel, Turn, run_scripted_model
from tests.support.services import MODEL
from tools.long_model import write_long_model

NUM_NOTES = 3
TASK, ANSWER = "Read all notes.", "All notes are read."
NOTE = "\n".join(f"Line {number} of this note is violet." for number in range(40))
SETTINGS = {
    "engine.context_tokens": 96 * 1024,
    "engine.saved_prefix_mib": 1024,
    "engine.threads": os.cpu_count() or 1,
}


@dataclass(frozen=True)
class NoteReader:
    """The script: a call for each note after the last task, and the answer."""

    agent: CodingAgent

    def __call__(self, conversation: pb.Conversation) -> Turn:
        reader, messages = self.agent.command.reader, conversation.messages
        if reader is None or not conversation.tools:
            return Turn(ANSWER)
        start = max(place for place, message in enumerate(messages) if has_task(message))
        number = sum(message.role == chat_pb2.ROLE_TOOL for message in messages[start:])
        if number == NUM_NOTES:
            return Turn(ANSWER)
        name, arguments = reader
        path = self.agent.home / f"note-{number}.txt"
        return Turn(f"Let me read note {number}.", (name, arguments(str(path))))

    def is_turn(self, conversation: pb.Conversation) -> bool:
        """Whether a chat is a turn of the session; agents also ask for its title, and the like."""
        offers_tools = bool(conversation.tools) or self.agent.command.reader is None
        return offers_tools and any(map(has_task, conversation.messages))


def has_task(message: chat_pb2.ChatMessage) -> bool:
    """Whether a message of the user has the task."""
    texts = (part.text for part in message.parts)
    return message.role == chat_pb2.ROLE_USER and any(TASK in text for text in texts)


async def run_session(agent: CodingAgent, model: ScriptedModel, folder: Path) -> int:
    """Run the agent before and after a restart. Returns the number of chats before it."""
    file = write_long_model(folder / "long.gguf")
    for arguments in ([TASK], [*agent.command.resume, TASK]):
        num_before = len(model.chats)
        settings = {**SETTINGS, "models": [f"{MODEL}={file}"]}
        async with model.run_corral(folder, settings) as corral:
            agent.server = ("--gateway", corral.url, "--control", corral.control)
            output = await agent.ask(*arguments)
        if ANSWER not in output:
            raise ValueError(output)
    return num_before


async def main(name: str, packages: Path | None) -> None:
    """Run the session of an agent, and print its figures."""
    with tempfile.TemporaryDirectory() as folder:
        agent = CodingAgent(name, prepare_home(Path(folder, "home"), name, packages))
        for number in range(NUM_NOTES):
            agent.home.joinpath(f"note-{number}.txt").write_text(NOTE)
        script = NoteReader(agent)
        async with run_scripted_model(script) as model:
            num_before = await run_session(agent, model, Path(folder))
    chats = [chat for chat in model.chats if script.is_turn(chat.conversation)]
    restarted = next(each for each in model.chats[num_before:] if each in chats)
    figures = {
        "first_prompt_tokens": len(chats[0].prompt),
        "last_prompt_tokens": len(chats[-1].prompt),
        "turns": len(chats),
        "reused": min(map(model.reused, chats[1:])),
        "reused_after_restart": model.reused(restarted),
    }
    json.dump(figures, sys.stdout)


asyncio.run(main(sys.argv[1], Path(sys.argv[2]) if sys.argv[2:] else None))
