"""Errors of authentication, authorization, origins, projects and keys."""

from svc_kit.errors.kinds import AlreadyExists, NotFound, PermissionDenied, Unauthenticated


class ApiKeyMissing(Unauthenticated):
    """You didn't provide an API key. Send it in the Authorization header: "Bearer YOUR_KEY"."""

    reason = "API_KEY_MISSING"


class ApiKeyInvalid(Unauthenticated):
    """Incorrect API key provided."""

    reason = "API_KEY_INVALID"


class ApiKeyExpired(Unauthenticated):
    """The API key has expired. Use another key."""

    reason = "API_KEY_EXPIRED"


class ApiKeyRevoked(Unauthenticated):
    """The API key was revoked. Use another key."""

    reason = "API_KEY_REVOKED"


class ScopeMissing(PermissionDenied):
    """The API key lacks the scope '{scope}', which {method} requires. Use a key with this scope."""

    reason = "SCOPE_MISSING"
    scope: str
    method: str


class ServiceOnly(PermissionDenied):
    """Only Corral's own services may set '{field}'. Remove it from the request."""

    reason = "SERVICE_ONLY"
    field: str


class HostNotAllowed(PermissionDenied):
    """Requests for the host '{host}' are not allowed. Add it to the setting allowed_hosts."""

    reason = "HOST_NOT_ALLOWED"
    host: str


class OriginNotAllowed(PermissionDenied):
    """Requests from origin '{origin}' are not allowed. Add it to the setting allowed_origins."""

    reason = "ORIGIN_NOT_ALLOWED"
    origin: str


class ProjectArchived(PermissionDenied):
    """The project '{project}' is archived. Use another project."""

    reason = "PROJECT_ARCHIVED"
    project: str


class ProjectNotFound(NotFound):
    """No such project: {project}"""

    reason = "PROJECT_NOT_FOUND"
    project: str
    field: str = "project_id"


class ApiKeyNotFound(NotFound):
    """No such API key: {key}"""

    reason = "API_KEY_NOT_FOUND"
    key: str
    field: str = "key_id"


class ProjectExists(AlreadyExists):
    """A project with id '{project}' already exists. Choose another id."""

    reason = "PROJECT_EXISTS"
    project: str
    field: str = "project_id"
