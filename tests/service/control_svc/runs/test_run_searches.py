"""Runs with file search: queries, the passages in the prompt, and citations."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from control_svc.inference.turns import TextPart, TurnRole
from control_svc.items.model import FileCitation, Text
from control_svc.items.proto import CITATION
from control_svc.runs.model import RunState
from control_svc.runs.steps import FileSearchStepCall, ToolCalls
from control_svc.tools.model import FileSearchTool, ToolResources
from control_svc.vector_stores.filters import Filter
from control_svc.vector_stores.search.model import Ranking, SearchHit
from tests.support.control import SetClock
from tests.support.jobs import open_test_database
from tests.support.runs import FixedSearch, RunWorld, execute_run, list_steps
from tests.support.scripted_turns import ScriptedTurns, call_script, in_order, text_script

SEARCHES = ScriptedTurns(
    in_order(
        call_script("file_search", '{"queries":["foxes"]}', call_id="call_1"),
        call_script("file_search", '{"queries":["whales"]}', call_id="call_2"),
        text_script("Foxes sleep [0], whales swim [1], nobody knows [2]."),
    )
)


class Library(FixedSearch):
    """Finds one passage, in a file named after the query."""

    async def search(
        self,
        project: str,
        store_ids: Sequence[str],
        queries: Sequence[str],
        max_results: int,
        filters: Filter | None,
        ranking: Ranking,
    ) -> list[SearchHit]:
        assert list(store_ids) == ["vs_library"]
        (query,) = queries
        return [
            SearchHit(
                file_id=f"file-{query}",
                filename=f"{query}.txt",
                score=0.5,
                attributes={},
                texts=(f"about {query}",),
            )
        ]


@pytest.fixture
async def world(tmp_path: Path, database_url: str | None) -> AsyncIterator[RunWorld]:
    """Runs in an empty database of each kind."""
    clock = SetClock()
    async with open_test_database(tmp_path, database_url, clock) as database:
        yield RunWorld(database, SEARCHES, clock)


async def test_citations_refer_to_passages_in_the_prompt(world: RunWorld) -> None:
    """Passages of all searches are numbered in order; a number without a passage is text."""
    assistant = await world.assistant(
        tools=(FileSearchTool(),), resources=ToolResources(vector_store_ids=("vs_library",))
    )
    thread = await world.thread("what do animals do?")
    async with world.process(search=Library()).run_jobs() as process:
        ended, events = await execute_run(process, assistant, thread)
        steps = await list_steps(process, ended)
    (message,) = await world.messages(ended)
    (answer,) = message.message.content
    passages = [
        part.text
        for each in SEARCHES.requests[-1].messages
        if each.role is TurnRole.TOOL
        for part in each.parts
        if isinstance(part, TextPart)
    ]
    filenames = [
        [result.filename for result in call.results or ()]
        for step in steps
        if isinstance(step.details, ToolCalls)
        for call in step.details.calls
        if isinstance(call, FileSearchStepCall)
    ]

    assert ended.state is RunState.COMPLETED
    assert passages == ["[0] foxes.txt\nabout foxes", "[1] whales.txt\nabout whales"]
    assert isinstance(answer, Text)
    assert answer.annotations == (
        FileCitation(file_id="file-foxes", filename="foxes.txt", marker="[0]", start=12, end=15),
        FileCitation(file_id="file-whales", filename="whales.txt", marker="[1]", start=29, end=32),
    )
    assert filenames == [["foxes.txt"], ["whales.txt"]]
    deltas = [each.event.message_delta.citations for each in events]
    assert list(map(CITATION.to_message, answer.annotations)) in deltas
