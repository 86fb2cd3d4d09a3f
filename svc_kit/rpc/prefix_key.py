"""The key by which a generation finds the replica that probably has the prefix of its prompt."""

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Final

from corral.inference.v1 import chat_pb2
from corral.inference.v1.inference_service_pb2 import ChatRequest, GenerateRequest

from svc_kit.auth.authenticator import PROJECT_KEY

_TEXT_CHARACTERS: Final = 1024
"""About 256 tokens of each text of the root."""
_TOKENS: Final = 256
Generation = ChatRequest | GenerateRequest


def prefix_key(request: Generation, metadata: Mapping[str, str | bytes]) -> str:
    """The same text for requests that probably share a prefix: those of a project, not of its
    prefix group, for a model, with the same adapters (by name and scale, whatever their files),
    salt and root. The root is the stored object, the session that the client names, or what a
    conversation begins with, up to its first user message.

    `metadata` is that of the call, which names the project.
    """
    options = request.options
    adapters = sorted(f"{each.adapter}={each.scale}" for each in options.adapters)
    project = str(metadata.get(PROJECT_KEY) or metadata.get("authorization", ""))
    named = options.cache.keep_for or options.cache.affinity
    root = [named] if named else _beginning(request)
    digest = blake2b(digest_size=12)
    for text in (request.model, project, options.cache.salt, *adapters, *root):
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()


def _beginning(request: Generation) -> Iterator[str]:
    if isinstance(request, GenerateRequest):
        yield request.text[:_TEXT_CHARACTERS]
        yield " ".join(map(str, request.token_ids.ids[:_TOKENS]))
        return
    for message in request.conversation.messages:
        yield from (part.text[:_TEXT_CHARACTERS] for part in message.parts)
        if message.role == chat_pb2.ROLE_USER:
            return
