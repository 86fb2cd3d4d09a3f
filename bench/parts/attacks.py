"""The first token of a small chat while others attack the gateway."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from bench.attacks import ATTACKS
from bench.attacks.attack import Target
from bench.attacks.drill import Harm, Victim, measure_attack
from bench.measurement import CORRAL, Measurement, Result, load_names, median
from bench.paths import BUNDLED_MODEL
from bench.servers import MODEL_NAME, EngineShape, Server
from bench.stage import Part, Stage

MAX_P50_RATIO, MAX_RATIO, MAX_GROWTH_MIB = 3.0, 20.0, 64.0
SHAPE = EngineShape(BUNDLED_MODEL, slots=16, context_tokens=1024, threads=1)
KEY, ATTACKERS_KEY = "a key of the benchmark's own", "a key of another project"


class Sizes(NamedTuple):
    """Chats for each attack, and rounds."""

    chats: int
    rounds: int


FULL, QUICK = Sizes(60, 3), Sizes(10, 1)
SETTINGS = {
    "CORRAL_GATEWAY_KEYS": json.dumps(
        [
            {
                "name": project,
                "project": project,
                "sha256": hashlib.sha256(key.encode()).hexdigest(),
                "scopes": ["inference"],
            }
            for project, key in (("victim", KEY), ("attacker", ATTACKERS_KEY))
        ]
    )
}


def measure(stage: Stage) -> Iterator[Measurement]:
    """Send small chats one after the other, alone and during each attack."""
    sizes = stage.sizes(FULL, QUICK)
    with stage.corral(SHAPE, SETTINGS, KEY) as server:
        victim = victim_of(server)
        stage.runner.run(victim.first_tokens_ms(sizes.chats))
        for number in range(stage.rounds or sizes.rounds):
            for name in ATTACKS:
                harm = stage.runner.run(measure_attack(name, victim, sizes.chats))
                yield Measurement(name, number, CORRAL, harm.p50_ms, harm.to_json())


def victim_of(server: Server) -> Victim:
    """A caller of a server with SETTINGS."""
    http = urlsplit(server.url).netloc
    own, attacker = (Target(http, server.grpc_target, key) for key in (KEY, ATTACKERS_KEY))
    return Victim(own, attacker, MODEL_NAME, server.processes)


def conclude(measurements: Sequence[Measurement]) -> list[Result]:
    """Compare first tokens during each attack with those alone, and the memory with its limit."""
    results = []
    for load in load_names(measurements):
        harms = [harm_of(one) for one in measurements if one.load == load]
        idle = median([each.idle_ms for each in harms])
        for name, values, ratios, limit in (
            ("p50", [h.p50_ms for h in harms], [h.p50_ratio for h in harms], MAX_P50_RATIO),
            ("max", [h.max_ms for h in harms], [h.max_ratio for h in harms], MAX_RATIO),
        ):
            results.append(
                Result(
                    *(f"{load}, {name}", tuple(ratios), limit, median(values), idle),
                    *("alone", "ms", "at most"),
                )
            )
        growth, grown = max((each.growth_mib, each.grown) for each in harms)
        name = "memory" if grown == "gateway" else f"memory of {grown}"
        results.append(
            Result(
                *(f"{load}, {name}", (growth / MAX_GROWTH_MIB,), 1.0, growth, MAX_GROWTH_MIB),
                *("allowed", "MiB", "at most"),
            )
        )
    return results


def harm_of(one: Measurement) -> Harm:
    """What a measurement was made of."""
    return Harm(**{name: one.figures[name] for name in Harm.__dataclass_fields__})


PART = Part(
    name="attacks",
    title="Small chats during attacks",
    text=(
        "The time to the first token of small chats, one after the other, while another process"
        " with another address and the key of another project sends the gateway what it can: the"
        " median and the latest, beside the median alone. The attacks are the rows of"
        " `bench/attacks`; those without a key are refused, but cost something. The third line of"
        " each is the most by which the resident memory of one process of the server grew: of the"
        " gateway, or of the one that it names. A process that started meanwhile is compared with"
        " the largest of its name before."
    ),
    measure=measure,
    conclude=conclude,
)
