"""However the answers of engines are cut into writes, and at whatever token engines are lost, the
output is that of one engine that is never disturbed."""

import asyncio
from collections.abc import Iterator
from itertools import count

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from inference_svc.engine.detokenizer import Detokenizer
from inference_svc.engine.events import Delta, Failed, Finished, Started
from inference_svc.upstream.target import UpstreamTarget
from tests.support.byte_engine import END, Attempt, ByteEngine, Client, byte_request
from tests.support.examples import UNRELIABLE_CHECKS

_EXAMPLES = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[*UNRELIABLE_CHECKS, HealthCheck.function_scoped_fixture],
)
_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)


class Bench:
    """Two engines, and a connection to both."""

    def __init__(
        self, runner: asyncio.Runner, engines: tuple[ByteEngine, ByteEngine], client: Client
    ) -> None:
        self.runner, self.engines, self.client = runner, engines, client
        self.ids = count()


@pytest.fixture(params=["llama_server", "vllm", "sglang"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """The connection serves all examples."""
    engines = ByteEngine((), request.param), ByteEngine((), request.param)

    async def open_client() -> Client:
        for engine in engines:
            await engine.start()
        client = Client(UpstreamTarget("bytes", [engine.url for engine in engines]))
        await client.ready()
        return client

    async def close(client: Client) -> None:
        await client.connection.close()
        for engine in engines:
            await engine.stop()

    with asyncio.Runner() as runner:
        client = runner.run(open_client())
        yield Bench(runner, engines, client)
        runner.run(close(client))


@_EXAMPLES
@given(
    text=_TEXTS,
    sizes=st.lists(st.integers(1, 200), max_size=4),
    lost_after=st.lists(st.none() | st.integers(0, 40), max_size=2),
    stops=st.lists(st.text(st.sampled_from("ab é"), min_size=1, max_size=2), max_size=2),
    per_event=st.integers(1, 5),
    max_tokens=st.integers(1, 50).filter(lambda count: count != 2),  # that is a probe
)
@example("né 👋", [1], [2, 1], [], 1, 50)
@example("aé b", [], [3], ["é "], 3, 50)
@example("0", [], [1], [], 1, 3)
def test_no_cut_and_no_loss_changes_the_output(
    bench: Bench,
    text: str,
    sizes: list[int],
    lost_after: list[int | None],
    stops: list[str],
    per_event: int,
    max_tokens: int,
) -> None:
    reply = (*text.encode(), END)
    attempts = [Attempt(each, None, sizes, per_event) for each in (*lost_after, None, None)]
    for engine in bench.engines:
        engine.reply, engine.attempts = reply, attempts  # both take the next one of the list
    client = bench.client
    client.events.clear()
    request = byte_request(next(bench.ids), stop=tuple(stops), max_tokens=max_tokens)
    events = bench.runner.run(client.run(request))

    told = reply[:max_tokens]
    if bench.engines[0].kind == "llama_server" and len(told) < len(reply):
        # It never names the tokens of a character that the limit cuts.
        told = tuple(bytes(told).decode(errors="ignore").encode())
    expected_tokens, expected_text = _undisturbed(told, stops)
    deltas = [each for each in events if isinstance(each, Delta)]
    assert not any(isinstance(each, Failed) for each in events)
    assert [token for each in deltas for token in each.tokens] == expected_tokens
    assert "".join(each.text for each in deltas) == expected_text
    (finished,) = (each for each in events if isinstance(each, Finished))
    assert finished.num_output_tokens == len(expected_tokens)
    assert sum(isinstance(each, Started) for each in events) == 1


def _undisturbed(reply: tuple[int, ...], stops: list[str]) -> tuple[list[int], str]:
    detokenizer, tokens, text = Detokenizer(stops), list[int](), ""
    for token in reply:
        tokens.append(token)
        text += detokenizer.push(b"" if token == END else bytes([token]))
        if detokenizer.stop is not None:
            break
    return tokens, text + detokenizer.finish()
