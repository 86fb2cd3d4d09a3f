"""File search in responses: events, results, citations and compaction."""

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
    """Searches for foxes, then answers with a valid and an invalid citation."""
    return ScriptedTurns(in_order(FOXES, text_script("Foxes sleep [0], nobody knows [1].")))


@pytest.fixture
async def running(
    tmp_path: Path, database_url: str | None, model: ScriptedTurns
) -> AsyncIterator[RunningVectors]:
    async with run_vectors(tmp_path, database_url, model=make_model_parts(model)) as each:
        yield each


async def create_library(running: RunningVectors) -> tuple[tool_pb2.Tool, dict[str, str]]:
    """Create a store of LIBRARY; return a tool that finds one passage, and file ids by name."""
    store_id, files = await running.vectors.create_with_files(LIBRARY)
    search = tool_pb2.FileSearchTool(vector_store_ids=[store_id], max_results=1)
    return tool_pb2.Tool(file_search=search), files


async def test_a_file_search_streams_its_events_and_cites_its_results(
    running: RunningVectors, model: ScriptedTurns
) -> None:
    """Results are returned only with the include option; the model always reads them."""
    client = ResponseClient(running.control.client)
    tool, files = await create_library(running)
    events = [each async for each in client.stream("What do foxes do?", tools=[tool])]
    search, answer = events[-1].completed.output
    (part,) = answer.message.parts
    with_results = await client.get(events[-1].completed.id, RESULTS)

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
    (result,) = with_results.output[0].file_search_call.results
    assert (result.file_id, result.filename) == (files["fox.txt"], "fox.txt")
    (citation,) = part.text.citations
    assert (citation.file_id, citation.marker) == (files["fox.txt"], "[0]")
    assert last_tool_output(model).startswith("[0] fox.txt\nfox fox")


async def test_an_unknown_vector_store_is_refused_before_the_model_is_called(
    running: RunningVectors, model: ScriptedTurns
) -> None:
    """By create, with and without storage, and by count."""
    client = ResponseClient(running.control.client)
    tool, _ = await create_library(running)
    tool.file_search.vector_store_ids.append(NO_STORE)
    tools = [tool]
    for store in (True, False):
        with pytest.raises(VectorStoreNotFound) as error:
            await client.create("x", tools=tools, store=store)
        assert error.value.field == "tools[0].vector_store_ids"
    with pytest.raises(VectorStoreNotFound):
        await client.count("x", tools=tools)
    assert not model.requests


async def test_file_search_without_an_embedding_model_is_refused(
    tmp_path: Path, database_url: str | None, model: ScriptedTurns
) -> None:
    """The error names the option that adds one; the model is not called."""
    parts = make_model_parts(model)
    async with run_vectors(tmp_path, database_url, embedding_model=None, model=parts) as each:
        store = await each.vectors.create(name="later")
        search = tool_pb2.FileSearchTool(vector_store_ids=[store.id])
        tools = [tool_pb2.Tool(file_search=search)]
        with pytest.raises(EmbeddingModelMissing, match="corral up --embedding-model"):
            await ResponseClient(each.control.client).create("x", tools=tools)
    assert not model.requests


async def test_passage_numbers_continue_after_compaction(
    running: RunningVectors, model: ScriptedTurns
) -> None:
    """Passages found before and after the summary have different citation numbers."""
    client = ResponseClient(running.control.client)
    tool, files = await create_library(running)

    def choose(request: TurnRequest) -> Script:
        texts = [part.text for m in request.messages for part in m.parts if type(part) is TextPart]
        if texts[-1].startswith("Sum up"):
            return text_script("Foxes")
        if not any(text.startswith("Summary") for text in texts):
            return FOXES
        has_read = request.messages[-1].role is TurnRole.TOOL
        return text_script("Whales swim [1], foxes sleep [0].") if has_read else WHALES

    model.choose = choose
    response = await client.create("animals " * 250, tools=[tool], compact_threshold=1000)

    kinds = [item.WhichOneof("content") for item in response.output]
    assert kinds == ["file_search_call", "compaction", "file_search_call", "message"]
    assert last_tool_output(model).startswith("[1] whale.txt")
    citations = response.output[-1].message.parts[0].text.citations
    assert [(each.marker, each.file_id) for each in citations] == [
        ("[1]", files["whale.txt"]),
        ("[0]", files["fox.txt"]),
    ]


def last_tool_output(model: ScriptedTurns) -> str:
    messages = [m for m in model.requests[-1].messages if m.role is TurnRole.TOOL]
    return "".join(part.text for part in messages[-1].parts if isinstance(part, TextPart))
