"""The hosted tool `file_search`: runs searches, numbers the passages for the model, and converts
the numbers that it cites into citations.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import orjson

from control_svc.agent.model import HostedCall
from control_svc.agent.prompt import FILE_SEARCH, compact_json
from control_svc.inference.turns import TurnTool
from control_svc.items import model as item_model
from control_svc.tools.model import FileSearchTool
from control_svc.vector_stores.filters import filter_from_json
from control_svc.vector_stores.search.model import Ranking, Search, SearchHit
from svc_kit.errors import DomainError
from svc_kit.errors.status import is_retryable

_MARKER: Final = re.compile(r"\[(\d{1,3})\]")


def next_passage_number(items: Sequence[item_model.Item]) -> int:
    """The number of the next passage found. Numbers restart at 0 after each user message."""
    number = 0
    for item in items:
        match item.content:
            case item_model.Message(role=item_model.Role.USER):
                number = 0
            case item_model.FileSearchCall() as search:
                number = max(number, search.first + len(search.results))
    return number


def find_citations(
    text: str, searches: Sequence[item_model.FileSearchCall]
) -> tuple[item_model.FileCitation, ...]:
    """Find the citations of passages, such as "[0]", in a text, in order."""
    results = {
        number: result
        for search in searches
        for number, result in enumerate(search.results, search.first)
    }
    return tuple(
        item_model.FileCitation(
            file_id=results[number].file_id,
            filename=results[number].filename,
            marker=match.group(),
            start=match.start(),
            end=match.end(),
        )
        for match in _MARKER.finditer(text)
        if (number := int(match.group(1))) in results
    )


DEFAULT_MAX_RESULTS: Final = 10
_MAX_QUERIES: Final = 5
_FUNCTION: Final = TurnTool(
    FILE_SEARCH,
    "Searches the user's files. The passages found are numbered; name the ones that you use by "
    "their numbers in brackets, as in [0].",
    compact_json(
        {
            "type": "object",
            "properties": {
                "queries": {
                    "type": "array",
                    "items": {"type": "string"},
                    "minItems": 1,
                    "maxItems": _MAX_QUERIES,
                    "description": "What to search for, in words or as a question.",
                }
            },
            "required": ["queries"],
            "additionalProperties": False,
        }
    ),
)


@dataclass(frozen=True)
class FileSearch:
    """The `HostedTool` that searches vector stores."""

    functions = (_FUNCTION,)
    kind = FILE_SEARCH
    item_prefix = item_model.ITEM_PREFIXES[item_model.FileSearchCall]
    is_repeatable = True

    search: Search
    store_ids: Sequence[str]
    tool: FileSearchTool

    def intent(self, call: HostedCall) -> item_model.FileSearchCall:
        """The search item before the search runs."""
        queries = _queries(call.arguments)
        problem = "" if queries else "The arguments contain no queries."
        return item_model.FileSearchCall(call_id=call.call_id, queries=queries, problem=problem)

    def handles(self, content: item_model.Content) -> bool:
        return isinstance(content, item_model.FileSearchCall)

    async def run(self, project: str, intent: item_model.Item) -> item_model.Content:
        """Run the search; return it with its results, or with the problem if it failed.

        Raises Unavailable or ResourceExhausted if the queries cannot be embedded now.
        """
        call = intent.content
        if not isinstance(call, item_model.FileSearchCall) or call.problem:
            return call
        try:
            hits = await self.search.search(
                project,
                self.store_ids,
                call.queries,
                self.tool.max_results or DEFAULT_MAX_RESULTS,
                filter_from_json(self.tool.filters_json),
                Ranking(score_threshold=self.tool.score_threshold or 0.0),
            )
        except DomainError as error:
            if is_retryable(error):
                raise
            return replace(call, problem=error.message)
        return replace(call, results=tuple(map(_result, hits)))

    def abandon(self, intent: item_model.Item) -> item_model.Content:
        """Return the content unchanged. Never called, since a search can be repeated."""
        return intent.content


def _queries(arguments: str) -> tuple[str, ...]:
    try:
        parsed = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return ()
    queries = parsed.get("queries") if isinstance(parsed, dict) else None
    if not isinstance(queries, list):
        return ()
    return tuple(query for query in queries if isinstance(query, str) and query)[:_MAX_QUERIES]


def _result(hit: SearchHit) -> item_model.SearchResult:
    return item_model.SearchResult(
        file_id=hit.file_id,
        filename=hit.filename,
        score=hit.score,
        text="\n".join(hit.texts),
        attributes_json=compact_json(dict(hit.attributes)),
    )
