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
from dialects.openai.shared.composed_shapes import page_shape
from dialects.openai.shared.objects import Deleted, deleted_object, list_object
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
    """The object in the first field of a reply: its type, and the headers of a response with it."""

    shape: Any
    headers: Callable[[Any], Mapping[str, str]] = lambda _: {}

    def respond(self, reply: Message, _path: Mapping[str, str] | None = None) -> Response:
        written = WRITTEN[self.shape].write(_first_field(reply))
        response = json_response(written)
        response.headers.update(self.headers(written))
        return response


@dataclass(frozen=True)
class Page:
    """A page of the objects of this type in the first field of a reply. `name` is the name of its
    schema, if not that of the type with List."""

    of: Any
    name: str = ""

    @property
    def shape(self) -> Any:
        return page_shape(self.of, self.name)

    def respond(self, reply: Message, _path: Mapping[str, str]) -> Response:
        next_page_token = getattr(reply, "next_page_token", "")
        write = WRITTEN[self.of].write
        return json_response(list_object(_first_field(reply), write, next_page_token))


@dataclass(frozen=True)
class Deletion:
    """The confirmation that the last object in the path was deleted."""

    object_name: str
    shape: ClassVar = Deleted

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
        response: Any,
        body: type[BaseModel] | None = None,
        *,
        query: type[BaseModel] | None = None,
    ) -> Callable[[MakeT], MakeT]:
        """Decorate a function whose parameters are FastAPI's; large bodies are converted in a
        thread. `response` is the type of an object, or a Resource, Page or Deletion. `body` and
        `query` document what the function validates."""
        is_result = isinstance(response, Resource | Page | Deletion)
        result = response if is_result else Resource(response)

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
            documented = operation(summary, result.shape, described, query=query)
            self._router.add_api_route(path, endpoint, methods=[verb], **documented)
            return make

        return decorate


def _parameter(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation)


def _first_field(reply: Message) -> Any:
    return getattr(reply, reply.DESCRIPTOR.fields[0].name)
