"""Pictures: what one costs that was seen before, and what those that arrive cost others."""

import asyncio
import base64
import io
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from bench import loadgen
from bench.contest import alternate
from bench.measurement import CORRAL, Measurement, Result, median, values_by_round
from bench.random_projector import PICTURE_PIXELS, PICTURE_TOKENS, text_width, write_projector
from bench.servers import MODEL_NAME, NEW_PROMPTS, Server
from bench.stage import Part, Stage
from bench.streams import Stream
from bench.workload import SAMPLINGS, WORDS
from inference_svc.llama.projector import Projector, ProjectorSettings
from inference_svc.media.encoder import Encoder, EncoderLimits
from inference_svc.media.encoder_messages import EncoderConfig
from inference_svc.media.model import DecodedImage
from inference_svc.models.projector_file import describe_projector

SEEN, SEEN_TEXT = "seen before", "text in the cache"
NEW = "new picture"
ENCODE, LIBMTMD = "encode a picture", "libmtmd alone"
ALONE, BESIDE = "8 streams alone", "8 streams, pictures arrive"
ARRIVING = "new picture beside 8 streams"
STREAMS: Final = 8
GROUP: Final = 4  # pictures encoded before the other side's turn
MAX_SEEN_COST, MAX_GAP_COST = 1.1, 1.5
MAX_ENCODE_COST = 1 / 0.95


class Sizes(NamedTuple):
    """Numbers of requests and tokens of a round."""

    seen: int
    new: int
    output_tokens: int  # of the streams
    arriving: int  # pictures, one after the other
    encoded: int
    rounds: int


FULL = Sizes(seen=60, new=12, output_tokens=384, arriving=12, encoded=120, rounds=3)
QUICK = Sizes(seen=3, new=2, output_tokens=16, arriving=2, encoded=4, rounds=1)


def measure(stage: Stage) -> Iterator[Measurement]:
    """Measure all servers with the same random projector, in turns."""
    sizes = stage.sizes(FULL, QUICK)
    stage.folder.mkdir(parents=True, exist_ok=True)
    projector = stage.folder / "random-projector.gguf"
    write_projector(projector, text_width(stage.model))
    projector_settings = ProjectorSettings(
        describe_projector(projector), stage.model, stage.threads
    )
    for number in range(stage.rounds or sizes.rounds):
        yield from _encode_round(stage, projector_settings, sizes.encoded, number)
    shape = replace(stage.shape(STREAMS + 2, 1024), projector=projector)
    with stage.corral(shape) as corral, stage.llama_servers(shape, NEW_PROMPTS[:1]) as peers:
        servers = {CORRAL: corral, **{peer.name: peer for peer in peers}}
        for number in range(stage.rounds or sizes.rounds):
            yield from _new_pictures(stage, servers, sizes.new, number)
            for name in alternate([*servers], number):
                yield from _round(stage, servers[name], name, sizes, number)


def _encode_round(
    stage: Stage, settings: ProjectorSettings, count: int, number: int
) -> Iterator[Measurement]:
    """Encode pictures in the encoder process, which writes their vectors to files, and in this
    process, in turns, so that both get the same share of the machine's noise."""
    pictures = [
        DecodedImage(PICTURE_PIXELS, PICTURE_PIXELS, _pixels(number * count + i).tobytes())
        for i in range(count)
    ]
    folder = stage.folder / f"vectors-{number}"
    folder.mkdir()
    times = stage.runner.run(_encode_in_turns(settings, pictures, folder))
    yield from (_milliseconds(ENCODE, number, name, each) for name, each in times.items())


async def _encode_in_turns(
    settings: ProjectorSettings, pictures: Sequence[DecodedImage], folder: Path
) -> dict[str, list[float]]:
    """The seconds of each group of pictures in both."""
    encoder = Encoder(EncoderConfig("bench", settings), EncoderLimits())
    await encoder.start()
    try:
        with closing(Projector(settings)) as projector:
            _encode_here(projector, pictures[:1])
            times: dict[str, list[float]] = {CORRAL: [], LIBMTMD: []}
            for first in range(0, len(pictures), GROUP):
                group = pictures[first : first + GROUP]
                for name in alternate([*times], first // GROUP):
                    started = time.monotonic()
                    if name == CORRAL:
                        await _encode_in_process(encoder, group, folder)
                    else:
                        _encode_here(projector, group)
                    times[name].append((time.monotonic() - started) / len(group))
            return times
    finally:
        await encoder.close()


async def _encode_in_process(
    encoder: Encoder, pictures: Sequence[DecodedImage], folder: Path
) -> None:
    await asyncio.gather(
        *(
            encoder.encode(each, each.digest, folder / each.digest.hex(), project="p", field="f")
            for each in pictures
        )
    )


def _encode_here(projector: Projector, pictures: Sequence[DecodedImage]) -> None:
    for picture in pictures:
        with projector.split_image(picture.width, picture.height, picture.rgb) as split:
            for index, chunk in enumerate(split.chunks):
                if chunk.kind is not None:
                    split.encode(index)


def _new_pictures(
    stage: Stage, servers: Mapping[str, Server], count: int, number: int
) -> Iterator[Measurement]:
    """Send new pictures to the servers in turns."""
    times: dict[str, list[float]] = {name: [] for name in servers}
    for i in range(count):
        body = _picture_chat(_picture(1000 * number + i))
        for name in alternate([*servers], i):
            times[name].append(_first_token_s(stage, servers[name], body))
    yield from (_milliseconds(NEW, number, name, each) for name, each in times.items())


def _round(
    stage: Stage, server: Server, name: str, sizes: Sizes, number: int
) -> Iterator[Measurement]:
    """Send a picture that was seen and a text in the cache in turns, then load the server with
    streams."""
    bodies = {SEEN: _picture_chat(_picture(1000 * number)), SEEN_TEXT: _text_chat(number)}
    times: dict[str, list[float]] = {load: [] for load in bodies}
    for body in bodies.values():
        _first_token_s(stage, server, body)
    for i in range(sizes.seen):
        for load in alternate([*bodies], i):
            times[load].append(_first_token_s(stage, server, bodies[load]))
    yield from (_milliseconds(load, number, name, each) for load, each in times.items())
    for load, arriving in ((ALONE, 0), (BESIDE, sizes.arriving)):
        pictures = [_picture(1000 * number + 500 + i) for i in range(arriving)]
        streams, arrived = stage.runner.run(_streams_beside(server, sizes, pictures, number))
        gaps = [gap for stream in streams for gap in stream.gaps_s]
        yield Measurement(load, number, name, round(float(np.percentile(gaps, 99)) * 1e3, 3))
        if arrived:
            yield _milliseconds(ARRIVING, number, name, arrived)


def _first_token_s(stage: Stage, server: Server, body: bytes) -> float:
    return stage.runner.run(_send(server, body)).first_token_s


def _milliseconds(load: str, number: int, system: str, seconds: Sequence[float]) -> Measurement:
    """The median of a round."""
    return Measurement(load, number, system, round(median(seconds) * 1e3, 3))


async def _streams_beside(
    server: Server, sizes: Sizes, pictures: Sequence[bytes], number: int
) -> tuple[list[Stream], list[float]]:
    """Run streams of text, and send pictures one after the other until they end. Return the streams
    and the seconds to the first token of the pictures."""
    bodies = [_chat(f"{number} {i} {' '.join(WORDS)}", sizes.output_tokens) for i in range(STREAMS)]
    streaming = asyncio.gather(*(_send(server, body) for body in bodies))
    arrived: list[float] = []
    for picture in pictures:
        if not streaming.done():
            arrived.append((await _send(server, _picture_chat(picture))).first_token_s)
    return await streaming, arrived


async def _send(server: Server, body: bytes) -> Stream:
    sent, reads = await loadgen.exchange(server.url, "/v1/chat/completions", body)
    return loadgen.read_stream(sent, reads)


def _picture(seed: int) -> bytes:
    """A PNG of noise, which no server can have seen."""
    file = io.BytesIO()
    Image.fromarray(_pixels(seed)).save(file, "PNG")
    return file.getvalue()


def _pixels(seed: int) -> npt.NDArray[np.uint8]:
    side = PICTURE_PIXELS
    return np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)


def _picture_chat(picture: bytes) -> bytes:
    url = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
    return _chat([{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "?"}])


def _text_chat(number: int) -> bytes:
    """A prompt as long as that of a picture."""
    words = (WORDS[(number + i) % len(WORDS)] for i in range(PICTURE_TOKENS))
    return _chat(" ".join(words) + "?")


def _chat(content: Any, output_tokens: int = 1) -> bytes:
    return json.dumps(
        {
            "model": MODEL_NAME,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": output_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            **SAMPLINGS["greedy"].to_json(1),
        }
    ).encode()


def conclude(measurements: Sequence[Measurement]) -> list[Result]:
    """Compare pictures with text, busy streams with quiet ones, and both with llama-server."""
    others = dict.fromkeys(
        each.system for each in measurements if each.system not in (CORRAL, LIBMTMD)
    )
    results = [
        _ratio(measurements, (SEEN, CORRAL), (SEEN_TEXT, CORRAL), MAX_SEEN_COST),
        _ratio(measurements, (BESIDE, CORRAL), (ALONE, CORRAL), MAX_GAP_COST),
        _ratio(measurements, (ENCODE, CORRAL), (ENCODE, LIBMTMD), MAX_ENCODE_COST),
    ]
    results += [_ratio(measurements, (NEW, CORRAL), (NEW, other), 1.0) for other in others]
    for other in others:
        results.append(_ratio(measurements, (BESIDE, CORRAL), (BESIDE, other), 1.0))
        if any(each.load == ARRIVING for each in measurements):  # not in older results
            results.append(_ratio(measurements, (ARRIVING, CORRAL), (ARRIVING, other), None))
    return results


def _ratio(
    measurements: Sequence[Measurement],
    own: tuple[str, str],
    peer: tuple[str, str],
    target: float | None,
) -> Result:
    own_values, peer_values = (values_by_round(measurements, *each) for each in (own, peer))
    name = peer[0] if peer[1] == CORRAL else peer[1]
    return Result(
        own[0],
        tuple(value / peer_values[n] for n, value in own_values.items() if peer_values.get(n)),
        target,
        median([*own_values.values()]),
        median([*peer_values.values()]),
        name,
        "ms",
        "at most",
    )


PART = Part(
    name="pictures",
    title="Pictures, HTTP beside llama-server",
    text=(
        f"Chats about PNGs of {PICTURE_PIXELS} x {PICTURE_PIXELS} pixels ({PICTURE_TOKENS} tokens, "
        "a projector with random weights). Milliseconds to the first token of a new picture and of "
        "one that was seen before, beside text of the same length in the cache; and the 99th "
        f"percentile of the time between two pieces of {STREAMS} streams of text, alone and while "
        "new pictures arrive one after the other, with the time to the first token of these: "
        "Corral computes them in pieces, so that each step keeps `engine.token_target_ms`. "
        "Milliseconds to encode a picture, in the encoder process and by libmtmd in the process "
        "that measures."
    ),
    measure=measure,
    conclude=conclude,
)
