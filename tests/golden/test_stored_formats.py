"""Formats that earlier releases stored are read and written alike. See the README beside this."""

import ast
import asyncio
import io
import json
from array import array
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, get_args

import numpy as np
import pytest
from corral.control.v1.assistant_pb2 import Assistant
from corral.control.v1.assistant_service_pb2 import CreateAssistantRequest
from corral.control.v1.response_event_pb2 import ResponseEvent
from corral.control.v1.run_event_pb2 import RunEvent
from corral.inference.v1.generation_pb2 import CacheOptions
from prometheus_client import CollectorRegistry, ProcessCollector
from pydantic import BaseModel, TypeAdapter

from control_svc.assistants import queries as assistant_queries
from control_svc.backup import layout as backup_layout
from control_svc.base.pagination import PageRequest, PageTokens
from control_svc.base.versioning import etag_of
from control_svc.batches.lines import _sort_key, error_line, response_line
from control_svc.config import ControlSettings
from control_svc.db.tables import pack_ints, pack_texts, unpack_ints, unpack_texts
from control_svc.event_log.model import encode_events
from control_svc.files.model import Completion
from control_svc.items import queries as item_queries
from control_svc.items.model import Content
from control_svc.responses import content_cipher
from control_svc.responses import queries as response_queries
from control_svc.responses.content_cipher import ContentCipher
from control_svc.responses.model import Summary
from control_svc.runs import queries as run_queries
from control_svc.runs.events import decode_event
from control_svc.slices import METADATA
from control_svc.vector_stores.search.chunk_queries import _STORED_TYPE
from corral_cli.migration.server import call_once
from gateway.config import GatewaySettings
from inference_svc.adapter_sync.state import DesiredAdapter, DesiredState, load_state, save_state
from inference_svc.config import InferenceSettings
from inference_svc.engine.constraint import Constraint
from inference_svc.engine.kv_cache.origin import recipe_of
from inference_svc.engine.request import AppliedAdapter, SequenceRequest
from inference_svc.engine.sampling_params import Adaptive, Dry, Mirostat, Sampling, Stage
from inference_svc.engine.saved_state import Origin
from inference_svc.gauges import EngineGauges, MediaGauges, ModelGauges
from inference_svc.llama.sampling.rng import SamplingRng
from inference_svc.rpc.prefix_policy import cache_key
from inference_svc.snapshots.file_format import SnapshotReader, write
from inference_svc.snapshots.snapshot import Fingerprint, Snapshot
from svc_kit.auth.keys import hash_key
from svc_kit.encryption import Sealer
from svc_kit.errors import AssistantNotFound
from svc_kit.metrics import (
    BackupMetrics,
    CertificateMetrics,
    EngineMetrics,
    HttpMetrics,
    JobMetrics,
    LimitMetrics,
    MoveMetrics,
    ProcessMetrics,
    RpcMetrics,
    StreamMetrics,
)
from svc_kit.settings.groups import ServiceSettings
from tests.architecture.test_house_rules import ROOT, product_files
from tests.support.snapshots import NO_BLOCKS

GOLDEN: Final = Path(__file__).parent
DOCUMENTS: Final[dict[str, TypeAdapter[Any]]] = {
    "assistant settings": assistant_queries._ASSISTANT_SETTINGS,
    "attachments": assistant_queries._ATTACHMENTS,
    "backup manifest": backup_layout._MANIFEST,
    "item content": item_queries._CONTENT,
    "response ending": response_queries._ENDING,
    "response settings": response_queries._SETTINGS,
    "response work": response_queries._WORK,
    "run": run_queries._RUN,
    "run settings": run_queries._SETTINGS,
    "run step": run_queries._STEP,
    "summary": content_cipher._SUMMARY,
    "thread settings": assistant_queries._THREAD_SETTINGS,
}
NOT_STORED: Final = 2
"""Type adapters of the product that only read: results of MCP tools, and run events of release 0.1,
which are no documents any more."""
NO_PROTO: Final = '"AP8="'
"""Options in golden documents that no request can have."""
SUMMARY: Final = Summary(text="so far", replaces_all=True)
CIPHER: Final = ContentCipher(Sealer(bytes(range(64))))
SECRET: Final = b"s" * 32
WANTED: Final = DesiredState(
    "5",
    {
        "x": DesiredAdapter(
            id="x",
            project="x",
            name="x",
            model="x",
            digest="x",
            file_bytes=1,
            default_scale=0.5,
            standing_scale=0.5,
            attempt=1,
        )
    },
)
SNAPSHOT: Final = Snapshot(
    snapshot_id="snap_1",
    created_at=1.5,
    model="m",
    fingerprint=Fingerprint("llama", "f" * 64, "f16", "0.3"),
    key=b"k",
    num_computed=2,
    whole=True,
    origin=Origin(
        request_id="r",
        choice=0,
        project="p",
        tokens=array("i", [1, 2, 3]),
        num_prompt=2,
        recipe="{}",
        hidden=(0.5,),
        adapters=(("d", 1.0),),
    ),
    state_bytes=4,
    kept_for="thread_1",
)


def golden(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    return content


def shape_of(schema: dict[str, Any]) -> dict[str, Any]:
    """A JSON schema without prose; class names are numbers in the order of their first use."""
    definitions: dict[str, Any] = schema.get("$defs", {})
    numbers: dict[str, str] = {}
    shapes: dict[str, Any] = {}

    def reduced(node: Any) -> Any:
        if isinstance(node, list):
            return [reduced(each) for each in node]
        if not isinstance(node, dict):
            return node
        return {
            key: number_of(value.rpartition("/")[2]) if key == "$ref" else reduced(value)
            for key, value in node.items()
            if key not in {"description", "$defs", "discriminator"}
            and not (key == "title" and isinstance(value, str))
        }

    def number_of(name: str) -> str:
        if name not in numbers:
            numbers[name] = f"#{len(numbers) + 1}"
            shapes[numbers[name]] = reduced(definitions[name])
        return numbers[name]

    return {"schema": reduced(schema), "shapes": shapes}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_have_the_fields_that_are_stored(name: str) -> None:
    """A field with another name or type makes documents of earlier releases unreadable; new ones
    that have a default do not."""
    shape = shape_of(DOCUMENTS[name].json_schema(mode="serialization"))
    known = (golden("documents") | golden("backup")["documents"])[name]
    before = known["shapes"] | {"": known["schema"]}
    for key, part in (shape["shapes"] | {"": shape["schema"]}).items():
        found, stored = part.get("properties", {}), before.get(key, {}).get("properties", {})
        for later in [each for each in found.keys() - stored if "default" in found[each]]:
            del found[later]

    assert json.loads(json.dumps(shape)) == known


def test_every_stored_document_is_pinned() -> None:
    """A new `TypeAdapter` of the product needs a golden file."""
    found = sum(
        isinstance(node, ast.Name) and node.id == "TypeAdapter" and isinstance(node.ctx, ast.Load)
        for path in product_files()
        for statement in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None
        for node in ast.walk(statement.value)
    )

    assert found == len(DOCUMENTS) + NOT_STORED


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_are_read_and_written_with_the_same_bytes(name: str) -> None:
    """What is not read is lost with the next write; older processes read what is written."""
    stored = golden("stored") | golden("backup")["stored"]
    for text in stored[name]:
        if name == "run":  # its settings are a document of their own
            run = run_queries.decode_run(stored["run settings"][0].encode(), text.encode())
            written = run_queries.run_document(run)
        else:
            value = DOCUMENTS[name].validate_json(text)
            names = {each.name for each in fields(value)} if is_dataclass(value) else set()
            later = names - json.loads(text).keys() if names else None
            written = DOCUMENTS[name].dump_json(value, exclude=later)
        assert written.decode() == text


def test_fields_of_documents_that_are_arrays_have_the_order_that_is_stored() -> None:
    """Named tuples are arrays in JSON."""
    stored = golden("stored")
    (work,) = map(DOCUMENTS["response work"].validate_json, stored["response work"])
    step, _ = map(DOCUMENTS["run step"].validate_json, stored["run step"])
    (attachments,) = map(DOCUMENTS["attachments"].validate_json, stored["attachments"])

    assert work.usage._asdict() == {
        "prompt_tokens": 11,
        "cached_tokens": 7,
        "completion_tokens": 5,
        "reasoning_tokens": 3,
    }
    assert step.error._asdict() == {"code": "server_error", "message": "broken"}
    assert attachments[0]._asdict() == {"file_id": "file-a", "tools": ("file_search",)}


def test_events_of_responses_are_read_and_written_with_the_same_bytes() -> None:
    """A worker of this release resumes a response of the one before."""
    stored = [bytes.fromhex(text) for text in golden("stored")["response events"]]
    events = [ResponseEvent.FromString(data) for data in stored]

    assert encode_events(events) == stored
    assert all(event.WhichOneof("event") for event in events)


def test_events_of_runs_are_read_and_written_with_the_same_bytes() -> None:
    """Those that release 0.1 stored as JSON are read as the protos that are stored now."""
    stored = [bytes.fromhex(text) for text in golden("run_events")["run events"]]
    events = [decode_event(data) for data in stored]
    texts = [text.replace(NO_PROTO, '""') for text in golden("stored")["run event"]]
    as_json = [decode_event(text.encode()) for text in texts]

    kinds = {field.name for field in RunEvent.DESCRIPTOR.oneofs_by_name["event"].fields}

    assert encode_events(events) == stored
    assert as_json == events
    assert {event.WhichOneof("event") for event in events} == kinds


def test_every_kind_of_item_has_a_golden_document() -> None:
    """A new kind needs one."""
    stored = {json.loads(text)["kind"] for text in golden("stored")["item content"]}

    assert stored == {each.kind for each in get_args(Content)}


def page_token() -> str:
    """The token behind the first of two threads."""
    window = PageTokens(b"k" * 32).window(PageRequest(size=1), ("p", "threads"), 100)
    threads = [SimpleNamespace(id="thread_1"), SimpleNamespace(id="thread_2")]
    return window.page(threads).next_token


def snapshot_file() -> str:
    file = io.BytesIO()
    write(file, SNAPSHOT, bytearray(b"\1\2\3\4"), SECRET)
    return file.getvalue().hex()


def recipe(**options: Any) -> str:
    given: dict[str, Any] = {"sampling": Sampling()} | options
    return recipe_of(
        SequenceRequest(
            sequence_id=1,
            model="m",
            prompt=array("i", [1, 2]),
            seed=7,
            choice=0,
            max_tokens=4,
            cache_key=b"k",
            resumed=array("i"),
            project="p",
            request_id="r",
            **given,
        )
    )


SAMPLING: Final = Sampling(
    dry=Dry(multiplier=0.5),
    mirostat=Mirostat(version=2),
    adaptive=Adaptive(target=0.25),
    logit_bias=((3, -1.0),),
    allowed_token_ids=(1, 2),
    stages=(Stage.TOP_K, Stage.TEMPERATURE),
)


def import_request_id() -> str:
    """The request id by which an import that is repeated creates nothing twice."""

    async def create(request_id: str) -> str:
        return request_id

    request = CreateAssistantRequest(assistant=Assistant(model="m"))
    return asyncio.run(call_once(create, "asst_old", request, AssistantNotFound))


def line_order() -> str:
    """The place of a line among those of its batch."""
    messages = [{"role": "user", "content": "Grüße"}]
    return _sort_key({"model": "m", "messages": messages}).decode()


FORMATS: Final[dict[str, Callable[[], str]]] = {
    "batch line answered": lambda: response_line(
        "batch_0123", 5, "a", 200, "req_1", {"x": 1}
    ).decode(),
    "batch line order": line_order,
    "batch line unanswered": lambda: error_line(
        "batch_0123", 6, b'{"custom_id":"b"}', "batch_expired", "late"
    ).decode(),
    "cache key": lambda: cache_key(
        CacheOptions(salt="s"), "3:own", (AppliedAdapter("d", 0.5),)
    ).hex(),
    "etag": lambda: etag_of("asst_1", 3),
    "import request id": import_request_id,
    "key hash": lambda: hash_key("ck_secret"),
    "packed numbers": lambda: pack_ints([1, 70_000, -1]).hex(),
    "packed texts": lambda: pack_texts([b"a", b"", b"bcd"]).hex(),
    "page token": page_token,
    "random number": lambda: str(SamplingRng(7, 1).seed(3, b"draw")),
    "sealed reasoning": lambda: CIPHER.seal_reasoning("p", "because"),
    "sealed summary": lambda: CIPHER.seal_summary("p", SUMMARY),
    "snapshot file": snapshot_file,
    "snapshot recipe": recipe,
    "snapshot recipe of all options": lambda: recipe(
        sampling=SAMPLING,
        constraint=Constraint(grammar="g", field="response_format"),
        stop_tokens=frozenset({2, 1}),
        min_tokens=1,
        ignore_eos=True,
    ),
    "upload completion": lambda: Completion(["part_1", "part_2"], "A" * 32).fingerprint(),
    "vector": lambda: np.array([0.5, -1, 0.1], np.float32).astype(_STORED_TYPE).tobytes().hex(),
}


@pytest.mark.parametrize("name", FORMATS)
def test_texts_and_bytes_are_written_as_before(name: str) -> None:
    """Another release, or a client, holds what this one compares its own with."""
    assert FORMATS[name]() == golden("formats")[name]


def test_adapter_state_is_written_and_read_as_before(tmp_path: Path) -> None:
    """A frontend that starts while the control service is away loads what it had."""
    path = tmp_path / "state.json"
    save_state(path, WANTED)
    assert path.read_text() == golden("formats")["adapter state"]

    path.write_text(golden("formats")["adapter state"])
    assert load_state(path) == WANTED


def test_what_an_earlier_release_wrote_is_read() -> None:
    """Page tokens, encrypted texts, packed columns and snapshots."""
    stored = golden("formats")
    file = bytes.fromhex(stored["snapshot file"])
    reader = SnapshotReader(io.BytesIO(file), len(file), "snap_1", SECRET, NO_BLOCKS)
    tokens = PageTokens(b"k" * 32)

    assert reader.snapshot == SNAPSHOT
    assert CIPHER.open_reasoning("p", stored["sealed reasoning"]) == "because"
    assert CIPHER.open_summary("p", stored["sealed summary"]) == SUMMARY
    assert unpack_ints(bytes.fromhex(stored["packed numbers"])) == [1, 70_000, -1]
    assert unpack_texts(bytes.fromhex(stored["packed texts"]), 3) == [b"a", b"", b"bcd"]
    asked = PageRequest(size=1, token=stored["page token"])
    assert tokens.window(asked, ("p", "threads"), 100).after == "thread_1"


def constants(suffix: str) -> set[str]:
    """The values of the control service's constants whose public names end so."""
    return {
        node.value.value
        for path in (ROOT / "control_svc").rglob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and node.target.id.endswith(suffix)
        and not node.target.id.startswith("_")
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }


def test_job_kinds_and_topics_are_those_that_are_stored() -> None:
    """Jobs of an earlier release are in the queue; processes of two releases share a database."""
    names = golden("names")

    assert constants("KIND") == set(names["job kinds"])
    assert constants("TOPIC") == set(names["topics"])


def metrics() -> dict[str, list[str]]:
    """The type and labels of each metric."""
    registry = CollectorRegistry()
    ProcessMetrics(registry, service="control", version="0.1", data_folder=ROOT)
    for made in (
        CertificateMetrics,
        RpcMetrics,
        HttpMetrics,
        EngineMetrics,
        LimitMetrics,
        MoveMetrics,
        StreamMetrics,
        JobMetrics,
        BackupMetrics,
    ):
        made(registry)
    kept: Iterable[Any] = registry._collector_to_names
    collectors = (EngineGauges(lambda: [], vllm_names=True), ModelGauges(()), MediaGauges(dict))
    scraped: Iterable[Any] = [each for collector in collectors for each in collector.collect()]
    ours = [each for each in kept if not isinstance(each, ProcessCollector)]
    return {each._name: [each._type, *each._labelnames] for each in ours} | {
        each.name: [each.type, *each._labelnames] for each in scraped
    }


def test_metrics_have_the_names_and_labels_that_dashboards_know() -> None:
    """A renamed metric or label is an empty panel."""
    assert metrics() == golden("names")["metrics"]


def test_every_metric_is_pinned() -> None:
    """A class of metrics that is new, or a metric elsewhere, needs a golden name."""
    literals = {
        node.value
        for path in product_files()
        if path.relative_to(ROOT).parts[0] != "corral_cli"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value.startswith("corral_")
        and node.value.replace("_", "").isalnum()
    }
    names = golden("names")["metrics"]

    assert [text for text in literals if not any(name.startswith(text) for name in names)] == []


def test_tables_have_the_columns_that_migrations_made() -> None:
    """Renaming a class or a field of a row does not rename what is in the database."""
    found = {
        table.name: {
            column.name: f"{column.type!s}{'' if column.nullable else ' NOT NULL'}"
            + (" PRIMARY KEY" if column.primary_key else "")
            for column in table.columns
        }
        for table in METADATA.sorted_tables
    }

    known = golden("names")["tables"]
    for changed in map(golden, sorted(path.stem for path in GOLDEN.glob("tables_*.json"))):
        known = known | {name: known.get(name, {}) | changed[name] for name in changed}
    assert found == known


@pytest.mark.parametrize(
    ("service", "settings"),
    [
        ("control", ControlSettings),
        ("gateway", GatewaySettings),
        ("inference", InferenceSettings),
    ],
)
def test_settings_have_the_names_that_operators_wrote(
    service: str, settings: type[ServiceSettings]
) -> None:
    """A setting that is unknown keeps a service from starting."""
    assert (settings.env_prefix(), settings.toml_table) == (f"CORRAL_{service.upper()}_", service)
    assert setting_names(settings) >= set(golden("names")["settings"][service])


def setting_names(model: type[BaseModel], prefix: str = "") -> set[str]:
    """The names of settings, with those of groups in front."""
    names = set[str]()
    for name, field in model.model_fields.items():
        names.add(prefix + name)
        kinds = [field.annotation, *getattr(field.annotation, "__args__", ())]
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                names |= setting_names(kind, f"{prefix}{name}.")
    return names
