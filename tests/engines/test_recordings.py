"""The engines of today answer as those that were recorded."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.engine_exchanges import EXCHANGES, Answer, fits, recordings, send
from tests.support.engine_features import find_features, recorded_features
from tests.support.engine_servers import RunningEngine

pytestmark = pytest.mark.timeout(1800)


def test_the_engine_answers_as_recorded(engine: RunningEngine) -> None:
    """Statuses, and the names and types in what is answered."""
    kept: dict[str, list[Answer]] = {}
    for line, answer in recordings(engine.kind):
        kept.setdefault(line["name"], []).append(answer)
    differing = []
    for exchange in EXCHANGES[engine.kind]:
        with ThreadPoolExecutor(exchange.copies) as pool:
            asked = [pool.submit(send, engine.url, exchange) for _ in range(exchange.copies)]
            answers = [each.result() for each in asked]
        before = kept[exchange.name]
        differing += [
            (exchange.name, answer.status, answer.text[:300])
            for answer in answers
            if not any(_is_like(answer, each) for each in before)
        ]

    assert differing == []


def test_the_probe_finds_what_was_recorded(engine: RunningEngine) -> None:
    """Which docs/reference/engines.md has; another version may be found."""
    found = find_features(engine.url)

    assert found | {"engine": ""} == recorded_features()[engine.kind] | {"engine": ""}


def _is_like(answer: Answer, recorded: Answer) -> bool:
    return answer.status == recorded.status and fits(answer.shape, recorded.shape)
