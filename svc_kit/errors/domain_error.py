"""The base of all errors. A subclass's name is its reason, its docstring the message, and its
annotations are the metadata."""

import inspect
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, Self, dataclass_transform

# A status is sent in HTTP/2 trailers, which peers limit to 8 KiB. The message appears twice, once
# percent-encoded (3 bytes for 1), the metadata once in base64.
MAX_MESSAGE_BYTES: Final = 800
MAX_VALUE_BYTES: Final = 400

_REQUIRED: Final = object()


@dataclass_transform(kw_only_default=True)
class DomainError(Exception):
    """A failure with a reason that programs can act on, and a message for people.

    Errors are equal if class, reason, metadata and retry_after are equal. They can be pickled, for
    the pipe to the engine process. Values are truncated to `MAX_VALUE_BYTES`; lone surrogates
    become `?`.
    """

    reason: ClassVar[str] = "UNSPECIFIED"
    """A value of `ErrorReason` without its prefix: the name of a concrete class, as in
    MISSING_FIELD of MissingField."""
    retry_after: float | None
    """Seconds to wait before retrying; None if unknown or useless."""
    message: str
    metadata: dict[str, str]

    _keys: ClassVar[Mapping[str, Any]] = {}
    """The constructor arguments and their types."""
    _defaults: ClassVar[Mapping[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        is_kind = cls.__base__ is DomainError
        if not is_kind and "reason" not in vars(cls):
            cls.reason = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).upper()
        added = {
            key: annotation
            for key, annotation in inspect.get_annotations(cls).items()
            if not str(annotation).startswith("typing.ClassVar")
        }
        cls._keys = {**cls._keys, **added}
        defaults = {key: vars(cls).get(key, _REQUIRED) for key in added}
        cls._defaults = {**cls._defaults, **defaults}
        for key, default in defaults.items():
            if default is not _REQUIRED:
                # As a class attribute it would shadow the property `field`.
                delattr(cls, key)

    def __init__(self, **values: Any) -> None:
        unknown = values.keys() - self._keys.keys()
        arguments = {**self._defaults, **values}
        missing = [key for key, value in arguments.items() if value is _REQUIRED]
        if unknown or missing:
            problem = f"unknown {sorted(unknown)}, missing {missing}"
            raise TypeError(f"{type(self).__name__}(): {problem}")
        retry_after = arguments.pop("retry_after", None)
        attributes = {k: _truncate(v) if isinstance(v, str) else v for k, v in arguments.items()}
        self.__dict__.update(attributes)
        self.retry_after = _whole_milliseconds(retry_after)
        self.metadata = {k: _text(v) for k, v in attributes.items() if v is not None}
        self.message = _truncate(self._describe(), MAX_MESSAGE_BYTES)

    @classmethod
    def with_reason(
        cls,
        *,
        reason: str,
        message: str,
        metadata: Mapping[str, str] | None = None,
        retry_after: float | None = None,
    ) -> Self:
        """Build an error of this kind for a reason without a class, as sent by a newer release or
        by another server."""
        error = cls.__new__(cls)
        error.__dict__.update(
            reason=reason,
            message=_truncate(message, MAX_MESSAGE_BYTES),
            metadata={key: _truncate(value) for key, value in (metadata or {}).items()},
            retry_after=_whole_milliseconds(retry_after),
        )
        return error

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str], retry_after: float | None) -> Self:
        """Build a concrete error from the metadata of a gRPC status.

        Raises TypeError or ValueError if the metadata does not match this class.
        """
        values: dict[str, Any] = {
            key: int(value) if cls._keys.get(key) is int else value
            for key, value in metadata.items()
        }
        if "retry_after" in cls._keys:
            values["retry_after"] = retry_after
        return cls(**values)

    @classmethod
    def metadata_keys(cls) -> tuple[str, ...]:
        """The metadata keys of this class."""
        return tuple(key for key in cls._keys if key != "retry_after")

    @property
    def field(self) -> str | None:
        """The request field at fault, as a path like `messages[0].content`."""
        return self.metadata.get("field")

    def _describe(self) -> str:
        return " ".join((self.__doc__ or self.reason).split()).format_map(self.metadata)

    def __str__(self) -> str:
        return self.message

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.reason}, {self.message!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DomainError) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[object, ...]:
        metadata = frozenset(self.metadata.items())
        return (type(self), self.reason, metadata, self.retry_after)

    def __reduce__(self) -> tuple[Callable[..., "DomainError"], tuple[Any, ...]]:
        return (_restore, (type(self), self.__dict__.copy()))


def release_frames(error: BaseException | None) -> None:
    """Let go of the frames in which an error, and those that led to it, were raised.

    A frame that has such an error in a variable forms a cycle with it, and what all those frames
    hold, such as a large request, would stay until a full run of the garbage collector.
    """
    while error is not None and error.__traceback__ is not None:
        error.__traceback__ = None
        release_frames(error.__cause__)
        error = error.__context__


def _restore(cls: type[DomainError], state: dict[str, Any]) -> DomainError:
    error = cls.__new__(cls)
    error.__dict__.update(state)
    return error


def _truncate(text: str, limit: int = MAX_VALUE_BYTES) -> str:
    raw = text.encode("utf-8", "replace")
    if len(raw) <= limit:
        return raw.decode()
    return raw[: limit - 3].decode("utf-8", "ignore") + "…"


def _text(value: object) -> str:
    # A protobuf `float` of 0.1 is 0.10000000149011612 in Python; it has seven significant digits.
    return _truncate(str(float(f"{value:.7g}")) if isinstance(value, float) else str(value))


def _whole_milliseconds(seconds: float | None) -> float | None:
    if seconds is None:
        return None
    return round(max(seconds, 0.0), 3) if math.isfinite(seconds) else None
