"""Renders conversations by transformers' `apply_chat_template`; runs in its own environment.

Reads `{"templates": {name: source}, "conversations": {name: body}, "bos": text, "eos": text}` from
its input; writes `{name: [text or null if the template refuses, ...]}`. Arguments of calls are
objects, as transformers' documentation asks.
"""

import json
import sys
from typing import Any

from jinja2.exceptions import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template


def _render(source: str, body: dict[str, Any]) -> str | None:
    continues = body.get("continue_final_message", False)
    variables = dict(body.get("chat_template_kwargs", {}))
    if "reasoning_effort" in body:
        variables["reasoning_effort"] = body["reasoning_effort"]
    try:
        rendered, _ = render_jinja_template(
            [body["messages"]],
            tools=body.get("tools"),
            chat_template=source,
            continue_final_message=continues,
            add_generation_prompt=not continues,
            bos_token=job["bos"],
            eos_token=job["eos"],
            **variables,
        )
    except (TemplateError, TypeError, ValueError, LookupError):
        return None
    return str(rendered[0])


job = json.load(sys.stdin)
for conversation in job["conversations"].values():
    for message in conversation["messages"]:
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
texts = {
    name: [_render(source, body) for body in job["conversations"].values()]
    for name, source in job["templates"].items()
}
json.dump(texts, sys.stdout)
