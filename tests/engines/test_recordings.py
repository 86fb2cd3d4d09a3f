"""The engines of today answer as those that were recorded."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.support.engine_exchanges import EXCHANGES, Answer, recordings, send, shape
from tests.support.engine_servers import RunningEngine


def _members(answer: Answer) -> Any:
    if answer.is_stream:
        return shape(answer.events[:1])
    try:
        return shape(json.loads(answer.text))
    except ValueError:
        return "text"


def _fits(found: Any, recorded: Any) -> bool:
    """Whether what is recorded is there, with more besides; null fits anything."""
    if found is None or recorded is None:
        return True
    if isinstance(recorded, dict) and isinstance(found, dict):
        return all(name in found and _fits(found[name], recorded[name]) for name in recorded)
    if isinstance(recorded, list) and isinstance(found, list):
        return not found or all(any(_fits(each, item) for each in found) for item in recorded)
    return bool(found == recorded)


def test_the_engine_answers_as_recorded(engine: RunningEngine) -> None:
    """Statuses, and the names and types in answers and first events."""
    kept: dict[str, list[Answer]] = {}
    for line, answer in recordings(engine.kind):
        kept.setdefault(line["name"], []).append(answer)
    differing = []
    for exchange in EXCHANGES[engine.kind]:
        with ThreadPoolExecutor(exchange.copies) as pool:
            answers = list(
                pool.map(lambda each: send(engine.url, each), [exchange] * exchange.copies)
            )
        was = kept[exchange.name]
        same = sorted(each.status for each in answers) == sorted(each.status for each in was)
        if not same or not _fits(_members(answers[0]), _members(was[0])):
            differing.append(
                (exchange.name, [each.status for each in answers], answers[0].text[:200])
            )

    assert differing == []
