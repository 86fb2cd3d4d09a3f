"""Keys of prefixes: equal where a prefix is probably shared, and only there."""

from typing import Any

import pytest
from corral.inference.v1 import chat_pb2
from corral.inference.v1 import inference_service_pb2 as pb

from svc_kit.auth.authenticator import PROJECT_KEY
from svc_kit.rpc.prefix_key import Generation, prefix_key

OURS = {PROJECT_KEY: "ours"}
SYSTEM, USER, ASSISTANT = chat_pb2.ROLE_SYSTEM, chat_pb2.ROLE_USER, chat_pb2.ROLE_ASSISTANT


def chat(*texts: str, cache: dict[str, Any] | None = None, **fields: Any) -> pb.ChatRequest:
    """A conversation of a system message, and turns of user and assistant."""
    roles = [SYSTEM, *[USER, ASSISTANT] * len(texts)]
    messages = [
        {"role": role, "parts": [{"text": text}]} for role, text in zip(roles, texts, strict=False)
    ]
    fields.setdefault("model", "m")
    options = {"cache": cache or {}, **fields.pop("options", {})}
    return pb.ChatRequest(conversation={"messages": messages}, options=options, **fields)


FIRST = chat("be kind", "hello")
SAME = {
    "a later turn": (FIRST, chat("be kind", "hello", "hi", "how are you?")),
    "the end of a long text": (chat("s" * 1024 + "a", "u"), chat("s" * 1024 + "b", "u")),
    "a named session": (
        chat("a", "b", cache={"affinity": "s1"}),
        chat("c", "d", cache={"affinity": "s1"}),
    ),
    "a stored object": (
        chat("a", "b", cache={"keep_for": "thread_1", "affinity": "x"}),
        chat("c", "d", cache={"keep_for": "thread_1"}),
    ),
    "the sampling": (FIRST, chat("be kind", "hello", options={"sampling": {"seed": 1}})),
}
OTHER: dict[str, Generation] = {
    "the first question": chat("be kind", "goodbye"),
    "the system message": chat("be rude", "hello"),
    "the model": chat("be kind", "hello", model="n"),
    "the salt": chat("be kind", "hello", cache={"salt": "s"}),
    "an adapter": chat("be kind", "hello", options={"adapters": [{"adapter": "a"}]}),
    "a raw prompt": pb.GenerateRequest(model="m", text="hello"),
    "other tokens": pb.GenerateRequest(model="m", token_ids={"ids": [1, 2]}),
}


@pytest.mark.parametrize("pair", SAME.values(), ids=SAME)
def test_these_requests_have_the_same_home(pair: tuple[pb.ChatRequest, pb.ChatRequest]) -> None:
    assert prefix_key(pair[0], OURS) == prefix_key(pair[1], OURS)


def test_each_other_root_has_a_key_of_its_own() -> None:
    keys = [prefix_key(request, OURS) for request in (FIRST, *OTHER.values())]

    assert len({*keys}) == len(keys)


def test_projects_and_keys_have_different_homes() -> None:
    callers = [OURS, {PROJECT_KEY: "theirs"}, {"authorization": "Bearer k"}, {}]

    assert len({prefix_key(FIRST, caller) for caller in callers}) == 4
