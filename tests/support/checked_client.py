"""A client that checks what a server sends against the server's OpenAPI document."""

import functools
import json
import re
import string
from collections.abc import Mapping
from typing import Any, Final

import httpx
import jsonschema  # type: ignore[import-untyped]  # it has no types

from tests.support.call_frames import read_frames, read_lines

READERS: Final = {"text/event-stream": read_frames, "application/x-ndjson": read_lines}
LINE: Final = re.compile(
    r"(\w+) (\S+)(?: (\d{3}))?(?: ([\[{].*[\]}]))?(?: (\w+=\w+))?(?: > (\w+)(?:=([\w.]+))?)?"
)


class CheckedClient:
    """Makes requests, and checks their responses against the document of the server."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client
        self._document = closed(client.get("/openapi.json").json())
        self.seen: set[str] = set()
        self.events: set[str] = set()

    @property
    def operations(self) -> set[str]:
        paths = self._document["paths"].items()
        return {f"{verb.upper()} {path}" for path, verbs in paths for verb in verbs}

    def call(self, verb: str, url: str, status: int = 200, **request: Any) -> Any:
        """Make a request that has this status. Returns its JSON, its events, or its text."""
        response = self._client.request(verb, url, **request)
        if response.status_code != status:
            raise AssertionError(f"{verb} {url}: {response.status_code} {response.text}")
        path = self._path_of(url.partition("?")[0], verb.lower())
        described = self._document["paths"][path][verb.lower()]["responses"]
        content = described["200" if status == 200 else "default"]["content"]
        media_type = response.headers["content-type"].partition(";")[0]
        if status == 200:
            self.seen.add(f"{verb} {path}")
        if (media := content.get(media_type)) is None:
            raise AssertionError(f"{verb} {url}: {media_type} is not described")
        if media_type in READERS:
            events = READERS[media_type](response.content)
            for event in events:
                self._check(event, media["schema"], f"{verb} {url}")
                self.events.add(str(event.get("event") or event.get("type") or path))
            return events
        if media_type != "application/json":
            return response.text
        self._check(response.json(), media["schema"], f"{verb} {url}")
        return response.json()

    def _path_of(self, url: str, verb: str) -> str:
        paths = [path for path, verbs in self._document["paths"].items() if verb in verbs]
        matching = [each for each in paths if re.fullmatch(re.sub("{[^}]+}", "[^/]+", each), url)]
        return str(min(matching, key=lambda path: path.count("{")))

    def _check(self, value: Any, schema: Mapping[str, Any], where: str) -> None:
        schema = {**schema, "components": self._document["components"]}
        validator = jsonschema.Draft202012Validator(schema)
        if (error := jsonschema.exceptions.best_match(validator.iter_errors(value))) is not None:
            raise AssertionError(f"{where}: {error.json_path}: {error.message[:2000]}")


def closed(node: Any) -> Any:
    """A document whose objects have no properties that it does not describe."""
    if isinstance(node, list):
        return [closed(each) for each in node]
    if not isinstance(node, dict):
        return node
    node = {key: closed(each) for key, each in node.items()}
    if node.get("type") == "object" and "properties" in node:
        node.setdefault("additionalProperties", False)
    return node


def send_line(api: CheckedClient, line: str, names: dict[str, Any]) -> None:
    """Make the request of a line of tests/e2e/openapi_requests.txt."""
    if not line or line.startswith(("#", "NOT ", "EVENT ")):
        return
    if line.startswith("LET "):
        _, name, value = line.split(" ", 2)
        names[name] = value
        return
    parsed = LINE.fullmatch(string.Template(line).substitute(names))
    if parsed is None:
        raise ValueError(line)
    verb, url, status, body, until, name, path = parsed.groups()
    if verb == "UNTIL":
        field, _, value = until.partition("=")
        while api.call("GET", url)[field] != value:
            pass
        return
    content = {} if body is None else {"json": json.loads(body)}
    answer = api.call(verb, url, int(status or 200), **content)
    if name is not None:
        steps = [int(step) if step.isdigit() else step for step in (path or "id").split(".")]
        names[name] = functools.reduce(lambda value, step: value[step], steps, answer)
