"""Routes that are one RPC: a function makes its request from the path, the query and the body, and
the response is the object in its reply."""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from fastapi import APIRouter
from google.protobuf.message import Message
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from dialects.openai.errors import ParamNames, openai_names
from dialects.openai.shared.objects import deleted_object, list_object
from dialects.shared.wire import WRITTEN
from gateway.context import Control
from gateway.http.docs import json_body, operation
from gateway.http.errors import json_response
from gateway.http.large_bodies import convert
from gateway.http.rate_limits import set_rate_limits
from gateway.rpc import ControlClient

MakeT = TypeVar("MakeT", bound=Callable[..., Message])


@dataclass(frozen=True)
class Resource:
    """The object in the first field of a reply: the name of its schema, what writes it, and the
    headers of a response with it."""

    schema: str
    write: Callable[[Any], Mapping[str, Any]]
    headers: Callable[[Any], Mapping[str, str]] = lambda _: {}

    def respond(self, reply: Message, _path: Mapping[str, str] | None = None) -> Response:
        """Respond with the object."""
        message = _first_field(reply)
        response = json_response(self.write(message))
        response.headers.update(self.headers(message))
        return response


def _declared(shape: type | Resource) -> Resource:
    return shape if isinstance(shape, Resource) else Resource(shape.__name__, WRITTEN[shape].write)


@dataclass(frozen=True)
class Page:
    """A page of the objects in the first field of a reply."""

    of: type | Resource

    @property
    def schema(self) -> str:
        """The name of the schema of a page."""
        return f"{_declared(self.of).schema}List"

    def respond(self, reply: Message, _path: Mapping[str, str]) -> Response:
        """Respond with the page."""
        next_page_token = getattr(reply, "next_page_token", "")
        write = _declared(self.of).write
        return json_response(list_object(_first_field(reply), write, next_page_token))


@dataclass(frozen=True)
class Deleted:
    """The confirmation that the last object in the path was deleted."""

    object_name: str
    schema: ClassVar = "Deleted"

    def respond(self, _reply: Message, path: Mapping[str, str]) -> Response:
        """Respond with the object's id."""
        return json_response(deleted_object([*path.values()][-1], self.object_name))


class RpcRoutes:
    """Makes routes of a router from functions that return the request of an RPC. `names` are the
    callers' names of fields in errors."""

    def __init__(self, router: APIRouter, names: ParamNames) -> None:
        self._router = router
        self._names = names

    def route(
        self,
        verb: str,
        path: str,
        summary: str,
        response: type | Resource | Page | Deleted,
        body: type[BaseModel] | None = None,
        *,
        query: type[BaseModel] | None = None,
    ) -> Callable[[MakeT], MakeT]:
        """Decorate a function whose parameters are FastAPI's; large bodies are converted in a
        thread. `body` and `query` document what the function validates."""
        result = _declared(response) if isinstance(response, type) else response

        def decorate(make: MakeT) -> MakeT:
            own = inspect.signature(make).parameters
            takes_request = "request" in own

            async def endpoint(control: ControlClient, request: Request, **given: Any) -> Response:
                given |= {"request": request} if takes_request else {}
                with openai_names(self._names):
                    proto = await convert(functools.partial(make, **given))
                    reply = await control.call(proto, Message)
                set_rate_limits(request.scope, reply)
                return result.respond(reply, request.path_params)

            # FastAPI resolves parameters in order, and gives an endpoint one request.
            parameters = {"control": _parameter("control", Control)}
            parameters |= {"request": _parameter("request", Request), **own}
            endpoint.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # for FastAPI
                [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters.values()]
            )
            endpoint.__name__, endpoint.__doc__ = make.__name__, make.__doc__
            described = None if body is None else json_body(body)
            documented = operation(summary, result.schema, described, query=query)
            self._router.add_api_route(path, endpoint, methods=[verb], **documented)
            return make

        return decorate


def _parameter(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation)


def _first_field(reply: Message) -> Any:
    return getattr(reply, reply.DESCRIPTOR.fields[0].name)
