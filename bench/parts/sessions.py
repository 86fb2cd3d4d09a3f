"""The first token of each turn of a long session, before and after a restart, beside llama-server
with its prompt cache in memory."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from bench import servers
from bench.contest import alternate
from bench.measurement import CORRAL, Measurement, Result, median
from bench.parts.warm import archiving_corral, session_shape
from bench.plots import line_chart
from bench.servers import Server
from bench.stage import Part, Stage
from bench.workload import SAMPLINGS, Workload

LLAMA_SERVER = "llama-server"
LEAST_REUSED, ALLOWED_TURN, ALLOWED_RESTART = 0.98, 1.1, 0.1


class Sizes(NamedTuple):
    """Tokens of the first prompt, and of what each turn adds to it; turns and rounds."""

    first: int
    added: int
    turns: int
    rounds: int


FULL, QUICK = Sizes(20_000, 300, 30, 3), Sizes(1000, 100, 4, 1)


def measure(stage: Stage) -> Iterator[Measurement]:
    """Run a session on each server in each round, with a restart in the middle."""
    sizes = stage.sizes(FULL, QUICK)
    context_tokens = sizes.first + sizes.turns * sizes.added + 256
    shape = session_shape(stage, 2, context_tokens, stage.threads)
    starts: dict[str, Callable[[], AbstractContextManager[Server]]] = {
        CORRAL: lambda: archiving_corral(stage, shape, "all")
    }
    if (peers := stage.peers) is not None:
        command = peers / "llama-server", shape, stage.folder, "streams, cache"
        starts[LLAMA_SERVER] = lambda: stage.engine(servers.llama_server(*command))
    for number in range(stage.rounds or sizes.rounds):
        for system in alternate([*starts], number):
            yield from _run_session(stage, sizes, system, starts[system], number)


def _run_session(
    stage: Stage,
    sizes: Sizes,
    system: str,
    start: Callable[[], AbstractContextManager[Server]],
    number: int,
) -> Iterator[Measurement]:
    half = sizes.turns // 2
    for first in (0, half):
        with start() as server:
            for turn in range(first, first + half):
                load = replace(_FIRST, prompt_tokens=turn * sizes.added)
                load = replace(load, shared_prefix_tokens=sizes.first).in_round(number)
                (stream,) = stage.run_http_load(server, load).streams
                figures = {
                    "prompt_tokens": stream.prompt_tokens,
                    "cached_tokens": stream.cached_tokens,
                }
                first_token_ms = 1e3 * stream.first_token_s
                yield Measurement(f"turn {turn + 1}", number, system, first_token_ms, figures)


_FIRST = Workload(
    requests=1,
    concurrency=1,
    prompt_tokens=0,
    output_tokens=16,
    sampling=SAMPLINGS["greedy"],
    as_ids=True,
)


class Session(NamedTuple):
    """The turns of a session in their order; the second half came after the restart."""

    turns: Sequence[Measurement]

    @property
    def reused(self) -> float:
        """The least share, in a turn, of the turn before: what had not changed."""
        pairs = pairwise(each.figures for each in self.turns)
        return min(float(now["cached_tokens"] / old["prompt_tokens"]) for old, now in pairs)

    @property
    def restarted(self) -> Measurement:
        """The first turn after the restart."""
        return self.turns[len(self.turns) // 2]

    @property
    def warm_ms(self) -> float:
        """The median of the other turns, without the first one."""
        return median([each.value for each in self.turns[1:] if each is not self.restarted])


def sessions(measurements: Sequence[Measurement], system: str) -> dict[int, Session]:
    """The sessions of a system by round."""
    own = [each for each in measurements if each.system == system]
    rounds = dict.fromkeys(each.round for each in own)
    return {number: Session([m for m in own if m.round == number]) for number in rounds}


def conclude(measurements: Sequence[Measurement]) -> list[Result]:
    """Compare what was reused with what had not changed, and the first tokens with the peer's."""
    own, peers = (sessions(measurements, system) for system in (CORRAL, LLAMA_SERVER))
    shares = tuple(session.reused for session in own.values())
    sent = [each.figures["prompt_tokens"] for session in own.values() for each in session.turns]
    reused = Result(
        load="reused of the turn before, least of all turns",
        ratios=shares,
        target=LEAST_REUSED,
        own=median([share * median(sent) for share in shares]),
        peer=median(sent),
        peer_name="prompt",
        unit="tokens",
    )

    def compare(load: str, value: Callable[[Session], float], target: float) -> Result:
        pairs = [(value(own[n]), value(peers[n])) for n in own if n in peers]
        return Result(
            load=load,
            ratios=tuple(mine / others for mine, others in pairs),
            target=target,
            own=median([value(session) for session in own.values()]),
            peer=median([others for _, others in pairs]),
            peer_name=LLAMA_SERVER,
            unit="ms",
            bound="at most",
        )

    return [
        reused,
        compare("first token of a turn", lambda each: each.warm_ms, ALLOWED_TURN),
        compare("after a restart", lambda each: each.restarted.value, ALLOWED_RESTART),
    ]


def draw(measurements: Sequence[Measurement]) -> Mapping[str, str]:
    """Draw the first token of each turn, the median over the rounds."""
    series = {}
    for system in (CORRAL, LLAMA_SERVER):
        rounds = [session.turns for session in sessions(measurements, system).values()]
        if rounds:
            by_turn = zip(*rounds, strict=True)
            values = [median([each.value for each in turns]) / 1e3 for turns in by_turn]
            series[system] = [(str(turn), value) for turn, value in enumerate(values, 1)]
    legend = "seconds to the first token, by turn; a restart in the middle"
    return {"turns": line_chart(series, legend)} if series else {}


PART = Part(
    name="sessions",
    title="Sessions of coding agents",
    text=(
        f"A session of {FULL.turns} turns: a first prompt of {FULL.first:,} tokens, to which each"
        f" turn adds {FULL.added}, with the bundled model and two slots. In the middle both servers"
        " are stopped and started. Corral has its disk prefix cache (`snapshots.archive_scope`"
        " all), llama-server its prompt cache in memory (`--cache-ram`), which a restart empties."
    ),
    measure=measure,
    conclude=conclude,
    draw=draw,
)
