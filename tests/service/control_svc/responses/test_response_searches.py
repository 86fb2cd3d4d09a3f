"""Responses that search files: what is told, shown and cited, also behind a summary."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from corral.control.v1 import response_pb2, tool_pb2

from control_svc.inference.turns import TextPart, TurnRequest, TurnRole
from svc_kit.errors import EmbeddingModelMissing, VectorStoreNotFound
from tests.support.response_client import ResponseClient, event_names, make_model_parts
from tests.support.scripted_turns import Script, ScriptedTurns, call_script, in_order, text_script
from tests.support.vectors import NO_STORE, RunningVectors, run_vectors

LIBRARY = {"fox.txt": "fox " * 790, "whale.txt": "A blue whale swims in the cold sea."}
FOXES = call_script("file_search", '{"queries":["fox"]}')
WHALES = call_script("file_search", '{"queries":["blue whale"]}', call_id="call_2")
RESULTS = response_pb2.RESPONSE_INCLUDE_FILE_SEARCH_RESULTS


@pytest.fixture
def model() -> ScriptedTurns:
    """Looks for foxes, and says what it has found."""
    return ScriptedTurns(in_order(FOXES, text_script("Foxes sleep [0], nobody knows [1].")))


@pytest.fixture
async def running(
    tmp_path: Path, database_url: str | None, model: ScriptedTurns
) -> AsyncIterator[RunningVectors]:
    """A control service on each database, with real stores."""
    async with run_vectors(tmp_path, database_url, model=make_model_parts(model)) as each:
        yield each


async def a_library(running: RunningVectors) -> tuple[tool_pb2.Tool, dict[str, str]]:
    """The tool that searches the library, which finds one passage, and the files by their names."""
    store_id, files = await running.vectors.create_with_files(LIBRARY)
    search = tool_pb2.FileSearchTool(vector_store_ids=[store_id], max_results=1)
    return tool_pb2.Tool(file_search=search), files


async def test_a_search_is_told_shown_and_cited(
    running: RunningVectors, model: ScriptedTurns
) -> None:
    """In OpenAI's order; results are shown to those who ask, the model reads them anyway."""
    client = ResponseClient(running.control.client)
    tool, files = await a_library(running)
    events = [each async for each in client.stream("What do foxes do?", tools=[tool])]
    search, answer = events[-1].completed.output
    (part,) = answer.message.parts
    whole = await client.get(events[-1].completed.id, RESULTS)

    assert event_names(events)[2:-2] == [
        "output_item_added",
        "file_search_call_in_progress",
        "file_search_call_searching",
        "file_search_call_completed",
        "output_item_done",
        "output_item_added",
        "content_part_added",
        "output_text_delta",
        "output_text_annotation_added",
        "output_text_done",
        "content_part_done",
    ]
    assert list(search.file_search_call.queries) == ["fox"]
    assert not search.file_search_call.results
    (found,) = whole.output[0].file_search_call.results
    assert (found.file_id, found.filename) == (files["fox.txt"], "fox.txt")
    (cited,) = part.text.citations
    assert (cited.file_id, cited.marker) == (files["fox.txt"], "[0]")
    assert read_last(model).startswith("[0] fox.txt\nfox fox")


async def test_a_store_that_is_not_there_is_refused(
    running: RunningVectors, model: ScriptedTurns
) -> None:
    """Before the model begins, by each way to ask."""
    client = ResponseClient(running.control.client)
    there, _ = await a_library(running)
    there.file_search.vector_store_ids.append(NO_STORE)
    tools = [there]
    for asking in (client.create("x", tools=tools, store=store) for store in (True, False)):
        with pytest.raises(VectorStoreNotFound) as caught:
            await asking
        assert caught.value.field == "tools[0].vector_store_ids"
    with pytest.raises(VectorStoreNotFound):
        await client.count("x", tools=tools)
    assert not model.requests


async def test_without_an_embedding_model_nothing_is_searched(
    tmp_path: Path, database_url: str | None, model: ScriptedTurns
) -> None:
    """The caller is told, with the command that adds one, not the model."""
    parts = make_model_parts(model)
    async with run_vectors(tmp_path, database_url, embedding_model=None, model=parts) as each:
        store = await each.vectors.create(name="later")
        search = tool_pb2.FileSearchTool(vector_store_ids=[store.id])
        tools = [tool_pb2.Tool(file_search=search)]
        with pytest.raises(EmbeddingModelMissing, match="corral up --embedding-model"):
            await ResponseClient(each.control.client).create("x", tools=tools)
    assert not model.requests


async def test_passages_keep_their_numbers_behind_a_summary(
    running: RunningVectors, model: ScriptedTurns
) -> None:
    """What was found before it and what is found behind it are cited apart."""
    client = ResponseClient(running.control.client)
    tool, files = await a_library(running)

    def choose(request: TurnRequest) -> Script:
        texts = [part.text for m in request.messages for part in m.parts if type(part) is TextPart]
        if texts[-1].startswith("Sum up"):
            return text_script("Foxes")
        if not any(text.startswith("Summary") for text in texts):
            return FOXES
        has_read = request.messages[-1].role is TurnRole.TOOL
        return text_script("Whales swim [1], foxes sleep [0].") if has_read else WHALES

    model.choose = choose
    made = await client.create("animals " * 250, tools=[tool], compact_threshold=1000)

    kinds = [item.WhichOneof("content") for item in made.output]
    assert kinds == ["file_search_call", "compaction", "file_search_call", "message"]
    assert read_last(model).startswith("[1] whale.txt")
    cited = made.output[-1].message.parts[0].text.citations
    assert [(each.marker, each.file_id) for each in cited] == [
        ("[1]", files["whale.txt"]),
        ("[0]", files["fox.txt"]),
    ]


def read_last(model: ScriptedTurns) -> str:
    """What the model read last of a tool."""
    messages = [m for m in model.requests[-1].messages if m.role is TurnRole.TOOL]
    return "".join(part.text for part in messages[-1].parts if isinstance(part, TextPart))
