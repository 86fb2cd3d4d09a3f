"""Runs that search files: what is searched, what the model reads of it, and what it cites."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from control_svc.inference.turns import TextPart, TurnRole
from control_svc.items.model import FileCitation, Text
from control_svc.runs.model import RunState
from control_svc.runs.steps import FileSearchStepCall, ToolCalls
from control_svc.tools.model import FileSearchTool, ToolResources
from control_svc.vector_stores.filters import Filter
from control_svc.vector_stores.search.model import Ranking, SearchHit
from tests.support.control import SetClock
from tests.support.jobs import a_database
from tests.support.runs import RunWorld, begun, now, steps_of, told
from tests.support.scripted_turns import ScriptedTurns, calls, in_order, says

SEARCHES = ScriptedTurns(
    in_order(
        calls("file_search", '{"queries":["foxes"]}', call_id="call_1"),
        calls("file_search", '{"queries":["whales"]}', call_id="call_2"),
        says("Foxes sleep [0], whales swim [1], nobody knows [2]."),
    )
)


class Library:
    """A `Search` that finds one passage, of a file named like the question."""

    def check_model(self) -> None:
        """There is one."""

    async def search(
        self,
        project: str,
        store_ids: Sequence[str],
        queries: Sequence[str],
        max_results: int,
        filters: Filter | None,
        ranking: Ranking,
    ) -> list[SearchHit]:
        """The passage."""
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
    """An empty database of each kind."""
    clock = SetClock()
    async with a_database(tmp_path, database_url, clock) as database:
        yield RunWorld(database, SEARCHES, clock)


async def test_each_citation_names_the_passage_that_the_model_read(world: RunWorld) -> None:
    """Also where it searched twice: passages are numbered through, and a number of none is text."""
    assistant = await world.assistant(
        tools=(FileSearchTool(),), resources=ToolResources(vector_store_ids=("vs_library",))
    )
    thread = await world.thread("what do animals do?")
    async with world.process(search=Library()).working() as process:
        run = await begun(process, assistant, thread)
        events = await told(process, run)
        ended = await now(process, run)
        steps = await steps_of(process, run)
    (message,) = await world.messages(run)
    (said,) = message.message.content
    read = [
        part.text
        for each in SEARCHES.requests[-1].messages
        if each.role is TurnRole.TOOL
        for part in each.parts
        if isinstance(part, TextPart)
    ]
    found = [
        [result.filename for result in call.results or ()]
        for step in steps
        if isinstance(step.details, ToolCalls)
        for call in step.details.calls
        if isinstance(call, FileSearchStepCall)
    ]

    assert ended.state is RunState.COMPLETED
    assert read == ["[0] foxes.txt\nabout foxes", "[1] whales.txt\nabout whales"]
    assert isinstance(said, Text)
    assert said.annotations == (
        FileCitation(file_id="file-foxes", filename="foxes.txt", marker="[0]", start=12, end=15),
        FileCitation(file_id="file-whales", filename="whales.txt", marker="[1]", start=29, end=32),
    )
    assert found == [["foxes.txt"], ["whales.txt"]]
    deltas = [getattr(event, "annotations", ()) for _, event in events]
    assert said.annotations in deltas
