"""Converts objects of an export to requests, and names what cannot be imported."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from corral.control.v1 import (
    assistant_service_pb2,
    message_pb2,
    thread_pb2,
    vector_store_file_service_pb2,
    vector_store_service_pb2,
)

from dialects.openai.assistants.requests import AssistantBody, create_assistant_request
from dialects.openai.assistants.thread_requests import (
    MessageBody,
    ThreadBody,
    messages_to_proto,
    thread_to_proto,
)
from dialects.openai.resources.vector_stores import (
    VectorStoreBody,
    VectorStoreFileBody,
    create_file_request,
    create_store_request,
)
from dialects.shared.fields import WireModel, validate

Json = dict[str, Any]
_UNSEARCHABLE = ("failed", "cancelled")
"""States of files in vector stores that have no chunks."""
_EXPIRED = "expired"
_CODE = "code_interpreter"
_SEARCH = "file_search"


class Translator:
    """Converts objects to requests. Raises DomainErrors for objects that are not valid."""

    def __init__(
        self,
        models: Mapping[str, str],
        default_model: str,
        new_id: Callable[[str], str | None],
        *,
        with_search: bool,
    ) -> None:
        """`models` maps model names of the export to those of the server; `default_model` replaces
        all others, unless empty. `new_id` returns the new id of a file or vector store, or None if
        it was not imported. Without search, vector stores are skipped, and attached files are not
        given to the file_search tool.
        """
        self._models = models
        self._default_model = default_model
        self._new_id = new_id
        self._with_search = with_search
        self.skipped: defaultdict[str, list[str]] = defaultdict(list)
        """The old ids of skipped objects, or of the objects that have them, by description."""
        self.models: defaultdict[str, list[str]] = defaultdict(list)
        """The old ids of assistants by the model that they get."""

    def assistant(
        self, exported: Json, request_id: str
    ) -> assistant_service_pb2.CreateAssistantRequest:
        fields = _fields_of(AssistantBody, exported)
        model = str(exported.get("model"))
        model = self._models.get(model, self._default_model or model)
        fields["model"] = model
        self.models[model].append(exported["id"])
        given = exported.get("tools") or ()
        tools = [tool for tool in given if tool.get("type") != _CODE]
        num_skipped = len(given) - len(tools)
        self.skipped[f"tools {_CODE}"] += [exported["id"]] * num_skipped
        fields["tools"] = tools
        fields["tool_resources"] = self._tool_resources(exported)
        return create_assistant_request(fields, request_id)

    def thread(self, exported: Json) -> thread_pb2.Thread:
        """Convert a thread, without its messages."""
        fields = {
            "metadata": exported.get("metadata") or {},
            "tool_resources": self._tool_resources(exported),
        }
        return thread_to_proto(validate(ThreadBody, fields))

    def store(self, exported: Json) -> vector_store_service_pb2.CreateVectorStoreRequest | None:
        """Convert a vector store, without its files. None if it is skipped."""
        if not self._with_search:
            self.skipped["vector stores"].append(exported["id"])
            return None
        if exported.get("status") == _EXPIRED:
            self.skipped["expired vector stores"].append(exported["id"])
            return None
        return create_store_request(_fields_of(VectorStoreBody, exported), "")

    def store_file(
        self, exported: Json, store_id: str
    ) -> vector_store_file_service_pb2.CreateVectorStoreFileRequest | None:
        """Convert a file of an imported vector store. None if it is skipped."""
        if exported.get("status") in _UNSEARCHABLE:
            self.skipped["files that could not be processed"].append(exported["id"])
            return None
        file_id = self._new_file_id(exported["id"])
        if file_id is None:
            return None
        fields = _fields_of(VectorStoreFileBody, exported)
        if (fields.get("chunking_strategy") or {}).get("type") == "other":
            del fields["chunking_strategy"]  # OpenAI: the strategy is unknown
        return create_file_request(store_id, {**fields, "file_id": file_id}, "")

    def message(self, exported: Json) -> message_pb2.NewMessage | None:
        """Convert a message. None if it has no content that can be imported."""
        content = exported.get("content") or ()
        parts = [new for part in content if (new := self._part(part, exported["id"]))]
        if not parts:
            self.skipped["messages without content"].append(exported["id"])
            return None
        fields = {
            "role": exported.get("role"),
            "content": parts,
            "attachments": [each for each in map(self._attachment, _attachments(exported)) if each],
            "metadata": exported.get("metadata") or {},
        }
        return messages_to_proto([validate(MessageBody, fields)])[0]

    def _part(self, part: Json, message_id: str) -> Json | None:
        kind = part.get("type")
        if kind == "text":
            text = part["text"]["value"] if isinstance(part.get("text"), dict) else part["text"]
            return {"type": "text", "text": text} if text else None
        if kind == "refusal":
            return {"type": "text", "text": part["refusal"]}
        if kind == "image_url":
            return {"type": kind, "image_url": part["image_url"]}
        if kind == "image_file":
            image = part["image_file"]
            file_id = self._new_file_id(image["file_id"])
            return file_id and {"type": kind, "image_file": {**image, "file_id": file_id}}
        self.skipped[f"parts {kind}"].append(message_id)
        return None

    def _attachment(self, attachment: Json) -> Json | None:
        file_id = self._new_file_id(str(attachment.get("file_id")))
        kinds = {tool.get("type") for tool in attachment.get("tools") or ()}
        tools = [{"type": _SEARCH}] if self._with_search and _SEARCH in kinds else []
        return file_id and {"file_id": file_id, "tools": tools}

    def _new_file_id(self, old: str) -> Any:
        new = self._new_id(old)
        if new is None:
            self.skipped["references to files that were not imported"].append(old)
        return new

    def _tool_resources(self, exported: Json) -> Json:
        """The imported vector stores of an object's tools."""
        search = (exported.get("tool_resources") or {}).get(_SEARCH) or {}
        olds = search.get("vector_store_ids") or ()
        news = {old: self._new_id(old) if self._with_search else None for old in olds}
        missing = [old for old, new in news.items() if new is None]
        self.skipped["references to vector stores that were not imported"] += missing
        return {_SEARCH: {"vector_store_ids": [new for new in news.values() if new]}}


def _fields_of(body: type[WireModel], exported: Json) -> Json:
    """The fields of an exported object that a new one can have."""
    return {name: exported[name] for name in body.model_fields.keys() & exported.keys()}


def _attachments(exported: Json) -> list[Json]:
    return exported.get("attachments") or []
