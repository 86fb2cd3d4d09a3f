"""Errors of authentication, authorization, origins, projects and keys."""

from svc_kit.errors.kinds import AlreadyExists, NotFound, PermissionDenied, Unauthenticated


class ApiKeyMissing(Unauthenticated):
    """You didn't provide an API key. Send it in the Authorization header: "Bearer YOUR_KEY"."""


class ApiKeyInvalid(Unauthenticated):
    """Incorrect API key provided."""


class ApiKeyExpired(Unauthenticated):
    """The API key has expired. Use another key."""


class ApiKeyRevoked(Unauthenticated):
    """The API key was revoked. Use another key."""


class AccessTokenInvalid(Unauthenticated):
    """The access token is not accepted: {problem}"""

    problem: str


class AccessTokenWithoutProject(PermissionDenied):
    """No group in the claim '{claim}' of the access token has a project here."""

    claim: str


class ScopeMissing(PermissionDenied):
    """The API key lacks the scope '{scope}', which {method} requires. Use a key with this scope."""

    scope: str
    method: str


class ModelNotAllowed(PermissionDenied):
    """The API key does not allow the model '{model}'. Use one of: {allowed}"""

    model: str
    allowed: str
    field: str = "model"


class AddressNotAllowed(PermissionDenied):
    """The API key does not allow requests from the address {address}. Send them from an address of
    its networks, or use another key."""

    address: str


class ClientNotAllowed(PermissionDenied):
    """The client certificate has no name that may call this service. Its names: {names}"""

    names: str


class ServiceOnly(PermissionDenied):
    """Only Corral's own services may set '{field}'. Remove it from the request."""

    field: str


class HostNotAllowed(PermissionDenied):
    """Requests for the host '{host}' are not allowed. Add it to the setting allowed_hosts."""

    host: str


class OriginNotAllowed(PermissionDenied):
    """Requests from origin '{origin}' are not allowed. Add it to the setting allowed_origins."""

    origin: str


class ProjectArchived(PermissionDenied):
    """The project '{project}' is archived. Use another project."""

    project: str


class ProjectNotFound(NotFound):
    """No such project: {project}"""

    project: str
    field: str = "project_id"


class ApiKeyNotFound(NotFound):
    """No such API key: {key}"""

    key: str
    field: str = "key_id"


class ProjectExists(AlreadyExists):
    """A project with id '{project}' already exists. Choose another id."""

    project: str
    field: str = "project_id"
