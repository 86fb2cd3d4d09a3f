"""Translates objects of an export to requests; reports what cannot be imported."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from corral.control.v1 import (
    assistant_service_pb2,
    message_pb2,
    thread_pb2,
    vector_store_file_service_pb2,
    vector_store_service_pb2,
)

from openai_wire.assistants.requests import create_assistant_request
from openai_wire.assistants.thread_requests import (
    MessageBody,
    ThreadBody,
    messages_from,
    thread_from,
)
from openai_wire.resources.vector_stores import create_file_request, create_store_request
from openai_wire.shared.fields import validated, without_neutral

Json = dict[str, Any]
_ASSISTANT_FIELDS = (
    "model",
    "name",
    "description",
    "instructions",
    "tools",
    "metadata",
    "temperature",
    "top_p",
    "reasoning_effort",
    "response_format",
)
_STORE_FIELDS = ("name", "description", "expires_after", "metadata")
_STORE_FILE_FIELDS = ("attributes", "chunking_strategy")
_UNREAD = ("failed", "cancelled")
"""States of files in stores that nothing can be found in."""
_EXPIRED = "expired"
_CODE = "code_interpreter"
_SEARCH = "file_search"


class Translator:
    """Makes requests of objects. Raises DomainErrors for objects that are none of OpenAI's."""

    def __init__(
        self,
        models: Mapping[str, str],
        default_model: str,
        new_id: Callable[[str], str | None],
        *,
        with_search: bool,
    ) -> None:
        """`models` are names here by names there; `default_model` stands for others, unless empty.
        `new_id` knows what a file or a vector store has become; None: it is not here. Without
        search there are no stores, and no tool is given attached files."""
        self._models = models
        self._default_model = default_model
        self._new_id = new_id
        self._with_search = with_search
        self.left_out: Counter[str] = Counter()
        """What is not here, by what it is."""

    def assistant(
        self, found: Json, request_id: str
    ) -> assistant_service_pb2.CreateAssistantRequest:
        """An assistant."""
        fields = {name: found.get(name) for name in _ASSISTANT_FIELDS}
        model = str(fields["model"])
        fields["model"] = self._models.get(model, self._default_model or model)
        tools = [tool for tool in fields["tools"] or () if tool.get("type") != _CODE]
        self.left_out[f"tools {_CODE}"] += len(fields["tools"] or ()) - len(tools)
        fields["tools"] = tools
        fields["tool_resources"] = self._resources(found)
        return create_assistant_request(fields, request_id)

    def thread(self, found: Json) -> thread_pb2.Thread:
        """A thread without its messages."""
        fields = {
            "metadata": found.get("metadata") or {},
            "tool_resources": self._resources(found),
        }
        return thread_from(validated(ThreadBody, fields))

    def store(self, found: Json) -> vector_store_service_pb2.CreateVectorStoreRequest | None:
        """A vector store without its files; None: it is left out."""
        if not self._with_search:
            self.left_out["vector stores"] += 1
            return None
        if found.get("status") == _EXPIRED:
            self.left_out["vector stores that have expired"] += 1
            return None
        return create_store_request({name: found.get(name) for name in _STORE_FIELDS}, "")

    def store_file(
        self, found: Json, store_id: str
    ) -> vector_store_file_service_pb2.CreateVectorStoreFileRequest | None:
        """A file in a store that is here, in which it is once, however often it is put there; None:
        it is left out."""
        if found.get("status") in _UNREAD:
            self.left_out["files that no store could read"] += 1
            return None
        file_id = self._file(found["id"])
        if file_id is None:
            return None
        fields = {name: found.get(name) for name in _STORE_FILE_FIELDS}
        if (fields["chunking_strategy"] or {}).get("type") == "other":
            del fields["chunking_strategy"]  # OpenAI's word for what it does not know any more
        return create_file_request(store_id, {**fields, "file_id": file_id}, "")

    def message(self, found: Json) -> message_pb2.NewMessage | None:
        """A message; None: nothing of it can be had here."""
        parts = [part for part in map(self._part, found.get("content") or ()) if part]
        if not parts:
            self.left_out["messages without content"] += 1
            return None
        fields = {
            "role": found.get("role"),
            "content": parts,
            "attachments": [each for each in map(self._attachment, _attachments(found)) if each],
            "metadata": found.get("metadata") or {},
        }
        return messages_from([validated(MessageBody, without_neutral(fields, {}))])[0]

    def _part(self, part: Json) -> Json | None:
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
            file_id = self._file(image["file_id"])
            return file_id and {"type": kind, "image_file": {**image, "file_id": file_id}}
        self.left_out[f"parts {kind}"] += 1
        return None

    def _attachment(self, attachment: Json) -> Json | None:
        file_id = self._file(str(attachment.get("file_id")))
        kinds = {tool.get("type") for tool in attachment.get("tools") or ()}
        tools = [{"type": _SEARCH}] if self._with_search and _SEARCH in kinds else []
        return file_id and {"file_id": file_id, "tools": tools}

    def _file(self, old: str) -> Any:
        new = self._new_id(old)
        if new is None:
            self.left_out["files that are not here"] += 1
        return new

    def _resources(self, found: Json) -> Json:
        """What the tools of an object work with: the stores that are here."""
        search = (found.get("tool_resources") or {}).get(_SEARCH) or {}
        olds = search.get("vector_store_ids") or ()
        news = [new for old in olds if self._with_search and (new := self._new_id(old))]
        self.left_out["uses of vector stores that are not here"] += len(olds) - len(news)
        return {_SEARCH: {"vector_store_ids": news}}


def _attachments(found: Json) -> list[Json]:
    return found.get("attachments") or []
