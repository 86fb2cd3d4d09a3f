"""The drill whose history is checked: two of each service, and all faults.

docs/understand/histories.md says what it proves: `make prove ARGS="-k history --faults 100"`.
"""

import asyncio
import logging
import random
import secrets
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from svc_kit.rpc.client import open_channel
from tests.chaos.test_chaos import make_answer_works
from tests.support.bridge import may_isolate
from tests.support.chaos import FileWork, HistoryWork, WorkCounter
from tests.support.chaos_answers import Chat, ChatWork
from tests.support.chaos_limits import LimitWork
from tests.support.cluster import Cluster, Fault, make_schedule, run_cluster
from tests.support.history import History
from tests.support.operators import Operator
from tests.support.seam_cases import CASES, MOVED

log = logging.getLogger(__name__)
pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(24 * 3600)]
MAX_TOKENS: Final = 200
LONGER: Final = {"parallel calls": 1500}
"""Of chats that would not get as far as what they are about."""
NUM_CHAT_CLIENTS: Final = 3
UNITS_BETWEEN: Final = 6
"""Most units of work between two faults."""


def make_chat_works(history: History) -> list[ChatWork]:
    """Each has a part of the cases, shorter than where single kills are tested."""
    chats: dict[str, Chat] = {}
    for name, case in CASES.items():
        limit = LONGER.get(name, MAX_TOKENS)
        budget = {"thinking_token_budget": limit // 2}
        shorter = {"max_tokens": limit, **{k: budget[k] for k in budget if k in case.body}}
        chats[name] = Chat(case.path, {**case.body, **shorter}, case.shows)
    names = list(chats)
    return [
        ChatWork(history, {name: chats[name] for name in names[first::NUM_CHAT_CLIENTS]})
        for first in range(NUM_CHAT_CLIENTS)
    ]


async def disturb(
    cluster: Cluster, history: History, faults: Sequence[Fault], rng: random.Random
) -> None:
    """Let clients work while the faults happen, then record what there is."""
    chats = make_chat_works(history)
    own_rng = random.Random(rng.random())
    works: list[HistoryWork] = [
        *chats,
        FileWork(history, own_rng),
        *make_answer_works(history, own_rng),
    ]
    limits = [
        LimitWork(history, "one service", cluster.targets[:1], cluster.token, 0),
        LimitWork(history, "all services", cluster.targets, cluster.token, 1),
    ]
    async with open_channel(cluster.control, token=cluster.token) as channel:
        for limit in limits:
            await limit.create(Operator(channel))
    for chat in chats:
        await chat.record_twins(cluster)
    counter, stop = WorkCounter(), asyncio.Event()
    async with asyncio.TaskGroup() as clients:
        for work in works:
            clients.create_task(work.run(cluster, counter, stop))
        for limit in limits:
            clients.create_task(limit.run(stop))
        for number, fault in enumerate(faults, 1):
            await counter.wait_for(rng.randint(1, UNITS_BETWEEN))
            log.warning("fault %d: %s", number, fault)
            with history.operation("faults", "fault", str(fault)):
                await cluster.suffer(fault)
        await counter.wait_for(UNITS_BETWEEN)
        stop.set()
    for work in works:
        await work.check(cluster)
    kinds = Counter(fault.kind for fault in faults)
    log.warning("%d units of work, %d faults: %s", counter.total, len(faults), dict(kinds))
    ends = sum((chat.ends for chat in chats), Counter[str]())
    log.warning("%d chats, %d moves: %s", ends.total(), len(cluster.lines_with(MOVED)), dict(ends))


def test_the_history_of_many_faults_is_allowed(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """With the same seed, the same faults."""
    seed = request.config.getoption("--seed", None)
    seed = secrets.randbits(32) if seed is None else seed
    log.warning("seed %d, history %s", seed, tmp_path / "history.jsonl")
    if not may_isolate():
        log.warning("no partitions, full disks and other monotonic clocks: they need root")
    rng, history = random.Random(seed), History(tmp_path / "history.jsonl")
    has_bucket = rng.random() < 0.5
    log.warning("contents of files: in %s", "a bucket" if has_bucket else "a folder")
    count = request.config.getoption("--faults", 100)
    faults = make_schedule(rng, count, has_bucket=has_bucket)
    with run_cluster(tmp_path, rng, has_bucket=has_bucket) as cluster:
        asyncio.run(disturb(cluster, history, faults, rng))
        forgotten = cluster.lines_with("never retrieved")

    assert history.check() == []
    assert forgotten == []
