"""Resources: stored objects that a gRPC service creates, returns, lists, changes and deletes.

`Resource` has the standard methods, whose requests and responses have the same fields in all
services. A subclass declares what its objects are, overrides what they need beside, and has a
method for each RPC that is not standard, or not quite.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from sqlalchemy.sql import ColumnElement

from control_svc.base.idempotency import IdempotencyRecord, record_request
from control_svc.base.ids import IdSource
from control_svc.base.object_queries import ObjectQueries, ObjectT
from control_svc.base.pagination import DEFAULT_PAGE, ListWindow, Page, PageTokens
from control_svc.base.proto import Context, caller_project, page_request
from control_svc.db.transaction import (
    Clock,
    CrossProjectTransactions,
    Transaction,
    Transactions,
    delete_transaction,
    read_transaction,
)
from svc_kit.rpc.handlers import add_handlers
from svc_kit.rpc.interceptors import accept_call
from svc_kit.rpc.message_mapper import MessageMapper
from svc_kit.rpc.server import Service

MAX_PAGE: Final = 100


class _New(Protocol):
    @property
    def request_id(self) -> str: ...

    def check(self) -> None: ...


ValueT = TypeVar("ValueT")
NewT = TypeVar("NewT", bound=_New)


class Served(Generic[ValueT]):
    """The methods of a service of objects, each named like its RPC.

    They return an object, a `Page` of objects, the response itself, or None if it is empty. Streams
    yield objects, responses, or lists of them; an empty list before them accepts the call, whose
    first response may take long. The first attributes are set in the body of a subclass.
    """

    service: Any
    """Its descriptor."""
    message: MessageMapper[ValueT, Any]
    noun: str
    """Such as "a vector store", for errors. Responses have the object in a field `vector_store`,
    requests its id in `vector_store_id`."""
    plural: str
    """The field of a page in the response of List; also a part of page tokens."""
    default_page: int = DEFAULT_PAGE
    max_page: int = MAX_PAGE

    @property
    def field(self) -> str:
        return self.noun.partition(" ")[2].replace(" ", "_")

    def to_message(self, value: ValueT) -> Any:
        return self.message.to_message(value)

    def standard(self) -> Mapping[str, Callable[..., Any]]:
        """The standard methods, by RPC."""
        return {}

    def caller(self) -> tuple[str, ...]:
        """The arguments of methods before the request."""
        return ()


@dataclass(frozen=True)
class OperatorMethods(Served[ValueT]):
    """Methods for operators and services, across projects. They take the request."""

    default_page = max_page = 1000

    transactions: CrossProjectTransactions
    tokens: PageTokens

    def window(self, request: Any, *binding: str, newest_first: bool = False) -> ListWindow:
        """The window of a List request. Its page tokens are bound to the filters `binding`. Raises
        OutOfRange or InvalidField."""
        wanted = page_request(request, self.default_page, newest_first=newest_first)
        return self.tokens.window(wanted, binding, self.max_page)


@dataclass(frozen=True)
class Methods(Served[ValueT]):
    """Methods for callers. They take the project of the caller and the request."""

    transactions: Transactions
    ids: IdSource
    tokens: PageTokens
    clock: Clock

    def caller(self) -> tuple[str, ...]:
        return (caller_project(),)

    def window(self, tx: Transaction, request: Any, prefix: str, *binding: str) -> ListWindow:
        """The window of a List request, whose cursors are ids with this prefix. Its page tokens are
        bound to the filters `binding`. Raises OutOfRange or InvalidField."""
        wanted = page_request(request, self.default_page)
        wanted.check_cursors(prefix, self.noun)
        return self.tokens.window(wanted, (tx.project, self.plural, *binding), self.max_page)


Edit = Callable[[Transaction, ObjectT], Awaitable[ObjectT]]
"""Returns the changed form of a locked object; the object itself if nothing changes."""
Filters = tuple[Sequence[str], Sequence[ColumnElement[bool]]]
"""As texts, which page tokens are bound to, and as conditions."""


class _DeclaredObjects(Generic[ObjectT, NewT]):
    queries: type[ObjectQueries[Any, ObjectT]]
    new: MessageMapper[NewT, Any]
    """Converts the request of Create. Not needed by a service whose Create is not standard."""
    max_bytes: int | None = None
    """Limit of the texts of a page that has more than one object."""


@dataclass(frozen=True)
class Resource(Methods[ObjectT], _DeclaredObjects[ObjectT, NewT]):
    """`Methods`, with the standard ones of objects that belong to nothing but a project."""

    async def insert(self, tx: Transaction, new: NewT, object_id: str, now: datetime) -> ObjectT:
        """Insert a new object. Raises the errors of Create, beside those of `new.check`."""
        raise NotImplementedError

    def edit(self, request: Any) -> Edit[ObjectT]:
        """Check the request of Update, before its transaction, and return the change."""
        raise NotImplementedError

    async def before_delete(self, tx: Transaction, current: ObjectT) -> None:
        """Refuse to delete a locked object, or delete what belongs to it."""

    def filters(self, request: Any) -> Filters:
        return (), ()

    def read_new(self, request: Any) -> NewT:
        """Convert the request of Create. Raises MissingField and InvalidField."""
        return self.new.from_message(request)

    async def create(self, project: str, request: Any) -> ObjectT:
        """Create an object. Raises RequestIdReused, and the errors of `new.check` and `insert`."""
        new = self.read_new(request)
        new.check()
        object_id, now = self.ids.new(self.queries.prefix), self.clock()
        method = type(request).DESCRIPTOR.name.removesuffix("Request")
        record = IdempotencyRecord.of(method, new.request_id, object_id, now, new)

        async def add(tx: Transaction) -> ObjectT:
            first = await record_request(tx, record)
            if first != object_id:
                return await self.queries(tx).get(first)
            return await self.insert(tx, new, object_id, now)

        return await self.transactions.of(project).write(add)

    @read_transaction
    async def get(self, tx: Transaction, request: Any) -> ObjectT:
        """Return an object. Raises the NotFound error of its type."""
        return await self.queries(tx).get(self._id(request))

    @read_transaction
    async def page(self, tx: Transaction, request: Any) -> Page[ObjectT]:
        """A page of the project's objects. Raises OutOfRange or InvalidField."""
        binding, conditions = self.filters(request)
        window = self.window(tx, request, self.queries.prefix, *binding)
        found = await self.queries(tx).page(window, *conditions)
        return window.page(found, self.max_bytes)

    async def update(self, project: str, request: Any) -> ObjectT:
        """Change an object. Raises the NotFound error of its type, and those of `edit`."""
        edit = self.edit(request)

        async def change(tx: Transaction) -> ObjectT:
            queries = self.queries(tx)
            current: ObjectT = await queries.lock(self._id(request))
            changed = await edit(tx, current)
            if changed is not current:
                await queries.update(changed)
            return changed

        return await self.transactions.of(project).write(change)

    @delete_transaction
    async def delete(self, tx: Transaction, request: Any) -> None:
        """Delete an object. Raises the NotFound error of its type, and those of `before_delete`."""
        queries, object_id = self.queries(tx), self._id(request)
        await self.before_delete(tx, await queries.lock(object_id))
        await queries.delete(object_id)

    def standard(self) -> Mapping[str, Callable[..., Any]]:
        """Get, List and Delete, and with `insert` and `edit` Create and Update."""
        name, names = (each.title().replace("_", "") for each in (self.field, self.plural))
        methods: dict[str, Callable[..., Any]] = {
            f"Get{name}": self.get,
            f"List{names}": self.page,
            f"Delete{name}": self.delete,
        }
        if type(self).insert is not Resource.insert:
            methods[f"Create{name}"] = self.create
        if type(self).edit is not Resource.edit:
            methods[f"Update{name}"] = self.update
        return methods

    def _id(self, request: Any) -> str:
        """The id of the object of a request, which has it in a field, or contains the object."""
        whole = getattr(request, self.field, None)
        object_id: str = getattr(request, f"{self.field}_id") if whole is None else whole.id
        return object_id


def build_service(methods: Served[Any]) -> Service:
    """Serve the methods of a service. Raises TypeError for an RPC without a method."""
    functions = {each.name: _function(methods, each) for each in methods.service.methods}
    add = partial(add_handlers, methods.service, functions)
    return Service(lambda _, server: add(server), methods, methods.service.full_name)


def _function(methods: Served[Any], rpc: Any) -> Callable[[Any, Any], Any]:
    method = getattr(methods, rpc.name, None) or methods.standard().get(rpc.name)
    if method is None:
        raise TypeError(f"{type(methods).__name__} has no method {rpc.name}")
    reply = partial(_reply, methods, GetMessageClass(rpc.output_type))

    async def respond(request: Any, _context: Context) -> Message:
        return reply(await method(*methods.caller(), request))

    async def stream(request: Any, context: Context) -> AsyncIterator[Message]:
        async with aclosing(method(*methods.caller(), request)) as values:
            async for value in values:
                group = value if isinstance(value, list) else [value]
                if not group:
                    await accept_call(context)
                for each in group:
                    yield reply(each)

    return stream if rpc.server_streaming else respond


def _reply(methods: Served[Any], response: type[Message], result: Any) -> Message:
    match result:
        case None:
            return response()
        case Message():
            return result
        case Page():
            items = [methods.to_message(each) for each in result.items]
            return response(**{methods.plural: items, "next_page_token": result.next_token})
    return response(**{methods.field: methods.to_message(result)})
