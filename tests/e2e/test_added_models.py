"""Models are added, changed and removed while the service runs, and survive its restarts."""

import signal
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from corral.inference.v1 import engine_service_pb2 as engine_pb
from corral.inference.v1 import inference_service_pb2 as pb
from corral.inference.v1 import model_pb2
from google.protobuf.duration_pb2 import Duration
from google.protobuf.json_format import MessageToDict

from inference_svc.models.sources import BUNDLED_DRAFT_PATH, BUNDLED_FOLDER, BUNDLED_PATH
from tests.support.gguf_files import write_split
from tests.support.model_hub import REPOSITORY, ModelHub, run_model_hub
from tests.support.model_kinds import write_model_of_kind
from tests.support.processes import ProgramFailed, clean_environment
from tests.support.rpc import Rpc, call_error, connect, make_completion, read_error
from tests.support.services import CORRAL, MODEL, run_inference
from tests.support.small_disk import MIB, fill, mount_disk

pytestmark = pytest.mark.e2e

FILE, SHORT, QUANT = "noise-Q8_0.gguf", "noise", "noise-Q8_0"
State = model_pb2.Model.State


@dataclass(frozen=True)
class Place:
    folder: Path
    hub: ModelHub

    @asynccontextmanager
    async def service(self, **settings: Any) -> AsyncIterator[Rpc]:
        """Run the service in the folder; it starts with what earlier ones left there."""
        hosts = {"model_hosts": [self.hub.host], "model_folders": [str(self.folder / "own")]}
        with run_inference(self.folder, {**hosts, **settings}) as inference:
            async with connect(inference.target) as rpc:
                yield rpc

    @property
    def downloads(self) -> list[str]:
        """The names of all files that were downloaded, without the lists of them."""
        files = self.folder.glob("data/models/added/*/*")
        return sorted(path.name for path in files if path.name != "files.json")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A folder for a service, and a Hub with a model and its split form."""
    model = write_model_of_kind("window", tmp_path / FILE).read_bytes()
    (tmp_path / "own").mkdir()
    (tmp_path / FILE).rename(tmp_path / "own" / FILE)
    files = {FILE: model, "junk-Q2_K.gguf": b"GGUF junk"}
    split = write_split(tmp_path)
    files |= {path.name: path.read_bytes() for path in sorted(split.parent.glob("*-of-*.gguf"))}
    with run_model_hub(files) as hub:
        for name, value in hub.variables.items():
            monkeypatch.setenv(name, value)
        yield Place(tmp_path, hub)


async def add(rpc: Rpc, source: str, **fields: Any) -> model_pb2.Model:
    added = (await rpc.engine.AddModel(engine_pb.AddModelRequest(source=source, **fields))).model
    return await settled(rpc, added.name)


async def settled(rpc: Rpc, name: str) -> model_pb2.Model:
    """Return a model when it is not being downloaded any more."""
    watch = rpc.engine.WatchModels(engine_pb.WatchModelsRequest(model=name))
    async for answer in watch:
        if answer.model.state not in (State.STATE_DOWNLOADING, State.STATE_VERIFYING):
            watch.cancel()
            return answer.model
    raise AssertionError("the watch ended")


async def generate(rpc: Rpc, model: str) -> int:
    request = make_completion("some words", stopping={"ignore_eos": True, "max_tokens": 3})
    request.model = model
    return (await rpc.generate(request)).finished[0].completion_tokens


async def names(rpc: Rpc, **fields: Any) -> dict[str, int]:
    listed = await rpc.inference.ListModels(pb.ListModelsRequest(**fields))
    return {model.name: model.state for model in listed.models}


async def refusal(rpc: Rpc, source: str, **fields: Any) -> tuple[str, str]:
    error = await call_error(
        rpc.engine.AddModel(engine_pb.AddModelRequest(source=source, **fields))
    )
    return error.reason, error.message


async def remove(rpc: Rpc, model: str, **fields: Any) -> None:
    await rpc.engine.RemoveModel(engine_pb.RemoveModelRequest(model=model, **fields))


async def test_a_model_of_the_hub_is_added_used_and_removed(place: Place) -> None:
    """Under its name and its aliases, also after a restart, which downloads nothing."""
    async with place.service() as rpc:
        added = await add(rpc, f"hf:{REPOSITORY}:q8_0", aliases=["hf.co/owner/models:Q8_0"])
        alias = engine_pb.AddModelAliasRequest(model=QUANT, alias="copied")
        await rpc.engine.AddModelAlias(alias)
        tokens = [await generate(rpc, name) for name in (QUANT, "copied")]
    requests = len(place.hub.requests)
    async with place.service() as rpc:
        tokens.append(await generate(rpc, "hf.co/owner/models:Q8_0"))
        listed = await names(rpc)
        await remove(rpc, "copied")
        left = (await rpc.inference.GetModel(pb.GetModelRequest(model=QUANT))).model.aliases
        await remove(rpc, QUANT)
        after = await names(rpc)
        gone = await call_error(rpc.inference.GetModel(pb.GetModelRequest(model=QUANT)))

    assert (added.name, added.state) == (QUANT, State.STATE_AVAILABLE)
    assert added.source == f"hf:{REPOSITORY}:q8_0"
    assert tokens == [3, 3, 3]
    assert len(place.hub.requests) == requests
    assert sorted(listed) == sorted([MODEL, QUANT])
    assert left == ["hf.co/owner/models:Q8_0"]
    assert (list(after), gone.reason) == ([MODEL], "MODEL_NOT_FOUND")
    assert place.downloads == []


async def test_a_download_that_a_kill_interrupts_continues_after_the_restart(place: Place) -> None:
    """From the byte where it was, without anybody who asks again."""
    place.hub.files[FILE] = BUNDLED_PATH.read_bytes()
    place.hub.gate = threading.Event()
    request = engine_pb.AddModelRequest(source=place.hub.url(FILE), name=SHORT)
    with run_inference(place.folder, {"model_hosts": [place.hub.host]}) as inference:
        async with connect(inference.target) as rpc:
            begun = (await rpc.engine.AddModel(request)).model
            watch = rpc.engine.WatchModels(engine_pb.WatchModelsRequest(model=SHORT))
            async for answer in watch:
                if answer.model.download.completed_bytes:
                    break
            pending = await names(rpc, pending=True)
            waits = await call_error(rpc.inference.GetModel(pb.GetModelRequest(model=SHORT)))
        inference.program.signal(signal.SIGKILL)
        inference.program.wait()
    (part,) = place.folder.glob("data/models/added/*/*.part")
    kept = part.stat().st_size
    place.hub.gate.set()
    async with place.service() as rpc:
        model = await settled(rpc, SHORT)
        tokens = await generate(rpc, SHORT)

    assert begun.state == State.STATE_DOWNLOADING
    assert pending[SHORT] == State.STATE_DOWNLOADING
    assert waits.reason == "MODEL_LOADING"
    assert kept >= answer.model.download.completed_bytes > 0
    assert answer.model.download.total_bytes == len(place.hub.files[FILE])
    assert (model.state, tokens) == (State.STATE_AVAILABLE, 3)
    assert place.hub.ranges(FILE) == ["", f"bytes={kept}-"]


async def test_what_cannot_be_added_is_refused_or_failed(place: Place) -> None:
    """At once where the request is at fault; else the model is listed as failed with the reason,
    the others serve, and the same request tries again."""
    later_part = place.folder / "own" / "x-00002-of-00003.gguf"
    later_part.touch()
    async with place.service() as rpc:
        refused = [
            await refusal(rpc, ""),
            await refusal(rpc, "/etc/passwd"),
            await refusal(rpc, "http://10.0.0.1/model.gguf"),
            await refusal(rpc, f"{place.hub.endpoint}/files/model.bin"),
            await refusal(rpc, f"hf:{REPOSITORY}/none.gguf"),
            await refusal(rpc, "hf:other/models"),
            await refusal(rpc, f"hf:{REPOSITORY}:IQ1_S"),
            await refusal(rpc, place.hub.source(FILE), name=MODEL),
            await refusal(rpc, place.hub.source(FILE), name="a b"),
            await refusal(rpc, place.hub.source(FILE), sha256="0" * 64),
            await refusal(rpc, str(later_part), sha256="0" * 64),
            await refusal(rpc, place.hub.source(FILE), aliases=[MODEL]),
            await refusal(rpc, place.hub.source(FILE), idle_ttl=Duration(nanos=1)),
        ]
        junk = await add(rpc, place.hub.source("junk-Q2_K.gguf"))
        wrong = await add(rpc, place.hub.url(FILE), name=SHORT, sha256="0" * 64)
        fails = await call_error(rpc.inference.GetModel(pb.GetModelRequest(model=SHORT)))
        await remove(rpc, SHORT)
        lost = await add(rpc, f"{place.hub.endpoint}/files/lost.gguf")
        right = await add(rpc, place.hub.url(FILE), name=SHORT)
        again = await refusal(rpc, place.hub.url(FILE), name=SHORT, sha256="0" * 64)
        other = await add(rpc, place.hub.url(FILE), name="other", sha256="0" * 64)
        serves = await generate(rpc, SHORT)
        settings = await call_error(
            rpc.engine.RemoveModel(engine_pb.RemoveModelRequest(model=MODEL))
        )
    async with place.service() as rpc:
        listed = await names(rpc, pending=True)

    assert [reason for reason, _ in refused] == [
        "MISSING_FIELD",
        *["INVALID_FIELD"] * 6,
        "MODEL_EXISTS",
        *["INVALID_FIELD"] * 3,
        "MODEL_EXISTS",
        "OUT_OF_RANGE",
    ]
    assert "noise-Q8_0.gguf" in refused[6][1]
    assert "inference.model_hosts" in refused[2][1]
    assert (junk.state, "junk-Q2_K.gguf" in junk.problem) == (State.STATE_FAILED, True)
    for each in (wrong, other):  # the file of the latter is already here, for `right`
        assert (each.state, "its SHA-256 is" in each.problem) == (State.STATE_FAILED, True)
    assert again[0] == "MODEL_EXISTS"
    assert fails.reason == "MODEL_LOAD_FAILED"
    assert (lost.state, bool(lost.problem)) == (State.STATE_FAILED, True)
    assert (right.state, serves) == (State.STATE_AVAILABLE, 3)
    assert settings.reason == "MODEL_IN_SETTINGS"
    assert listed["junk-Q2_K"] == State.STATE_FAILED
    assert listed[SHORT] == State.STATE_AVAILABLE


async def test_a_model_is_pinned_and_unloaded_when_idle(place: Place) -> None:
    """A time to live unloads it, unless it is pinned; a pinned one is loaded at the start."""
    source = str(place.folder / "own" / FILE)
    async with place.service() as rpc:
        await add(rpc, source, name=SHORT, idle_ttl=Duration(seconds=1))
        await generate(rpc, SHORT)
        watch = rpc.engine.WatchModels(engine_pb.WatchModelsRequest(model=SHORT))
        states = []
        async for answer in watch:
            states.append(answer.model.state)
            if states[-1] == State.STATE_AVAILABLE:
                break
        watch.cancel()
        change = engine_pb.UpdateModelRequest(model=SHORT, pinned=True)
        change.update_mask.paths[:] = ["pinned"]
        pinning = (await rpc.engine.UpdateModel(change)).model
    async with place.service() as rpc:
        watch = rpc.engine.WatchModels(engine_pb.WatchModelsRequest(model=SHORT))
        async for answer in watch:
            if answer.model.state == State.STATE_READY:
                break
        watch.cancel()
        pinned = answer.model

    assert pinning.state in (State.STATE_LOADING, State.STATE_READY)
    assert states[0] == State.STATE_READY
    assert states[-1] == State.STATE_AVAILABLE
    assert (pinned.pinned, pinned.idle_ttl.seconds) == (True, 1)


async def test_a_model_in_use_is_removed_when_its_last_request_ends(place: Place) -> None:
    """New requests do not find it any more; with force the request is ended."""
    endless = make_completion("some words", stopping={"ignore_eos": True})
    endless.model = SHORT
    async with place.service() as rpc:
        await add(rpc, place.hub.source(FILE), name=SHORT)
        running = rpc.inference.Generate(endless)
        await anext(aiter(running))
        watch = rpc.engine.WatchModels(engine_pb.WatchModelsRequest(model=SHORT))
        await anext(aiter(watch))
        removing = rpc.engine.RemoveModel(engine_pb.RemoveModelRequest(model=SHORT))
        removed = [answer.removed async for answer in watch][-1]
        refused = await read_error(rpc.inference.Generate(endless))
        same = await refusal(rpc, place.hub.source(FILE), name=SHORT)
        during = place.downloads
        running.cancel()
        await removing
        after = place.downloads

    assert removed == SHORT
    assert refused.reason == "MODEL_NOT_FOUND"
    assert same[0] == "MODEL_EXISTS"
    assert (during, after) == ([FILE], [])


async def test_the_command_adds_lists_and_removes(place: Place) -> None:
    """With the progress of the download; all parts of a split model are downloaded."""
    place.hub.cuts = [10]
    with run_inference(place.folder, {"model_hosts": [place.hub.host]}) as inference:

        def corral(*arguments: str) -> subprocess.CompletedProcess[str]:
            command = [str(CORRAL), "models", *arguments, "--target", inference.target]
            return subprocess.run(
                command, env=clean_environment(), capture_output=True, text=True, check=False
            )

        first = next(name for name in place.hub.files if "-00001-of-" in name)
        pulled = corral("pull", place.hub.source(first), "--name", "split", "--ttl", "60")
        added = corral("add", place.hub.url(FILE), "--name", SHORT, "--alias", "other")
        again = corral("add", place.hub.url(FILE), "--name", SHORT)
        other = corral("add", place.hub.source(FILE), "--name", SHORT)
        drafted = corral("add", place.hub.url(FILE), "--name", "d", "--draft-model", "/x.gguf")
        alias = corral("alias", SHORT, "third")
        update = corral("update", SHORT, "--ttl", "5")
        pins = corral("pin", SHORT), corral("show", SHORT), corral("unpin", SHORT)
        listed = corral("list")
        removed = corral("remove", "third"), corral("remove", SHORT)
        left = corral("list")

    assert (added.returncode, again.returncode, update.returncode) == (0, 0, 0), added
    assert "noise-Q8_0.gguf" in added.stderr
    assert [each.returncode for each in pins] == [0, 0, 0]
    assert "pinned: true" in pins[1].stdout
    assert "already exists" in other.stderr
    assert "draft_model" in drafted.stderr
    assert "other, third" in alias.stdout
    assert pulled.stdout + pulled.stderr
    assert SHORT in listed.stdout
    assert [each.returncode for each in removed] == [0, 0]
    assert SHORT not in left.stdout
    assert len(place.downloads) == 3


async def test_an_adapter_in_the_repository_comes_with_its_model(place: Place) -> None:
    """As a model of its own while its model is there, also after a restart. It is never chosen as
    the model, and one that does not fit is not used. A projector brings none."""
    pirate, lora = BUNDLED_FOLDER / "demo-lora-pirate-f16.gguf", "lora/voice.gguf"
    place.hub.files = {lora: pirate.read_bytes(), "e-model.gguf": BUNDLED_PATH.read_bytes()}
    async with place.service() as rpc:
        added = await add(rpc, f"hf:{REPOSITORY}", name=SHORT)
        begun = await names(rpc)
    async with place.service() as rpc:
        tokens = await generate(rpc, "voice")
        adapters = await rpc.engine.ListAdapters(engine_pb.ListAdaptersRequest())
        request = engine_pb.ExplainModelRequest(model=SHORT)
        explained = MessageToDict((await rpc.engine.ExplainModel(request)).explanation)
        adapter = await add(rpc, place.hub.source(lora), name="adapter")
        place.hub.files["noise-Q4_K_M.gguf"] = (place.folder / "own" / FILE).read_bytes()
        other = await add(rpc, f"hf:{REPOSITORY}:Q4_K_M", name="other")
        vision = BUNDLED_FOLDER / "demo-vision-mmproj-q8_0.gguf"
        place.hub.files["mmproj-a.gguf"] = vision.read_bytes() + bytes(2**18)  # three adapters
        projector = place.hub.source("mmproj-a.gguf")
        sees = await add(rpc, place.hub.source("e-model.gguf"), name="sees", projector=projector)
        for name in (SHORT, "sees"):
            await remove(rpc, name)
        left = await names(rpc)

    assert sees.state == State.STATE_AVAILABLE
    assert (added.name, added.state) == (SHORT, State.STATE_AVAILABLE)
    assert begun.keys() == {MODEL, SHORT, "voice"}
    assert tokens == 3
    assert [(each.name, each.model) for each in adapters.adapters] == [("voice", SHORT)]
    assert explained["beside"]["adapters"] == ["voice.gguf"]
    assert (adapter.state, "a LoRA adapter" in adapter.problem) == (State.STATE_FAILED, True)
    assert other.state == State.STATE_AVAILABLE
    assert left.keys() == {MODEL, "other"}


async def test_a_draft_model_is_downloaded_with_its_model(place: Place) -> None:
    """It is loaded with it, also after a restart; one of another vocabulary is refused. Removing
    the model removes both files."""
    draft, model = BUNDLED_DRAFT_PATH, "model.gguf"
    place.hub.files |= {draft.name: draft.read_bytes(), model: BUNDLED_PATH.read_bytes()}
    sources = [place.hub.source(name) for name in (draft.name, FILE)]
    async with place.service() as rpc:
        added = await add(rpc, place.hub.url(model), name=SHORT, draft_model=sources[0])
        other = await add(rpc, place.hub.url(model), name="other", draft_model=sources[1])
        same = await refusal(rpc, place.hub.source(FILE), name="same", draft_model=sources[1])
    async with place.service() as rpc:
        tokens = await generate(rpc, SHORT)
        listed = (await rpc.inference.GetModel(pb.GetModelRequest(model=SHORT))).model
        for name in (SHORT, "other"):
            await remove(rpc, name)

    assert (added.state, added.draft_model) == (State.STATE_AVAILABLE, draft.stem)
    assert other.state == State.STATE_FAILED
    assert "draft_model: the vocabulary of noise-Q8_0 is another one" in other.problem
    assert same[0] == "INVALID_FIELD"
    assert "draft_model" in same[1]
    assert (tokens, listed.draft_model) == (3, draft.stem)
    assert place.downloads == []


async def test_nothing_is_added_to_a_full_disk(place: Place, tmp_path: Path) -> None:
    """The request is refused if it cannot be stored, and a download that has no room fails until
    there is some."""
    with mount_disk(tmp_path, 16) as disk:
        async with Place(disk, place.hub).service() as rpc:
            place.hub.files[FILE] = BUNDLED_PATH.read_bytes()
            ballast = fill(disk, leave=0)
            refused = await refusal(rpc, place.hub.url(FILE), name=SHORT)
            listed = await names(rpc, pending=True)
            ballast.unlink()
            fill(disk, leave=MIB)
            full = await add(rpc, place.hub.url(FILE), name=SHORT)
            ballast.unlink()
            right = await add(rpc, place.hub.url(FILE), name=SHORT)
            tokens = await generate(rpc, SHORT)

    assert (refused[0], "No space left on device" in refused[1]) == ("STORAGE_FAILED", True)
    assert list(listed) == [MODEL]
    assert (full.state, "are free" in full.problem) == (State.STATE_FAILED, True)
    assert (right.state, tokens) == (State.STATE_AVAILABLE, 3)


async def test_a_name_of_the_settings_too_stops_the_start(place: Place) -> None:
    """The message says which, and what to do."""
    async with place.service() as rpc:
        await add(rpc, str(place.folder / "own" / FILE), name=SHORT)
    model = f"noise={place.folder / 'own' / FILE}"
    with (
        pytest.raises(ProgramFailed, match="'noise' is in the settings, and in"),
        run_inference(place.folder, {"models": [model]}),
    ):
        pass
