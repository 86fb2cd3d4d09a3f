"""Render docs/reference/parameters.md from the request models of all routes."""

import asyncio
from collections import defaultdict
from collections.abc import Iterator

from fastapi.routing import iter_route_contexts
from pydantic import BaseModel

from dialects.shared.parameters import Ignored, Rule, policies
from gateway.app import build
from gateway.config import GatewaySettings
from gateway.http.docs import RequestBody

HEAD = """# Parameters

<!-- Written by tools/generate_docs.py; run `make docs` after a change of the code. -->

Which parameters are accepted without effect, and which are refused? The ones that a route
implements are in its OpenAPI description at `/docs`.

- An *ignored* parameter is named in the header `x-corral-ignored` of the response, also of a
  stream. If the request has the header `X-Corral-Strict-Parameters: true`, or the gateway has the
  setting `strict_parameters`, it is refused instead. Batches ignore it.
- A *refused* parameter is an error (400) that names it, since the answer would differ without it.
  Values in brackets ask for what is done anyway, and are accepted.
- An unknown parameter is an error (400). Null means that a parameter is not given.
- Unknown keys of earlier turns (messages of the assistant and of tools, items of responses) are not
  parameters and are ignored, since clients send back what they have received.
"""


def render() -> str:
    """Return the page as Markdown."""
    routes = asyncio.run(_routes())
    users: dict[tuple[str, Rule], list[str]] = defaultdict(list)
    for model, paths in routes.items():
        for name, rule in policies(model).items():
            users[name, rule] += paths
    tables: dict[tuple[str, ...], dict[str, Rule]] = defaultdict(dict)
    for (name, rule), paths in users.items():
        tables[tuple(dict.fromkeys(paths))][name] = rule
    lines = [line for paths, rules in tables.items() for line in _table(paths, rules)]
    return "\n".join([HEAD, *lines])


async def _routes() -> dict[type[BaseModel], list[str]]:
    """The request models, each with its routes."""
    found: dict[type[BaseModel], list[str]] = defaultdict(list)
    async with build(GatewaySettings()) as gateway:
        for route in iter_route_contexts(gateway.api.routes):
            body = getattr(route, "openapi_extra", None)
            for model in body.models if isinstance(body, RequestBody) else ():
                found[model].append(f"`{route.path}`")
    return found


def _table(paths: tuple[str, ...], rules: dict[str, Rule]) -> Iterator[str]:
    yield from (f"## {', '.join(paths)}", "", "| Parameter | | Why |", "|---|---|---|")
    for name, rule in sorted(rules.items(), key=lambda each: (type(each[1]).__name__, each[0])):
        values = ", ".join(f"`{value!r}`" for value in rule.neutral)
        neutral = f" ({values})" if values else ""
        word = "ignored" if isinstance(rule, Ignored) else "refused"
        yield f"| `{name}`{neutral} | {word} | {rule.reason} |"
    yield ""
