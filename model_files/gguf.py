"""Reads headers of GGUF files (versions 2 and 3) without trusting them: every count and size is
bounded.
"""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple, NoReturn

from model_files.bounded_reader import FileEnds, FileWindow
from model_files.ggml_types import REMOVED_TYPES, TENSOR_LAYOUTS

MAX_METADATA = 65_536
MAX_TENSORS = 65_536
MAX_KEY_BYTES = 65_535
MAX_KEPT_STRING_BYTES = 1 << 20
MAX_KEPT_BYTES = 4 << 20
MAX_KEPT_NUMBERS = 4096
MAX_ARRAY_ITEMS = 8_000_000
MAX_ARRAY_DEPTH = 4
MAX_TENSOR_NAME_BYTES = 256
MAX_DIMENSIONS = 4
MAX_TENSOR_ITEMS = 1 << 48
MAX_ALIGNMENT = 1 << 20

_MAGIC = b"GGUF"
_DEFAULT_ALIGNMENT = 32
_STRING, _ARRAY = 8, 9
_SCALAR_CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?"} | {
    10: "Q",
    11: "q",
    12: "d",
}
_SCALARS: Final = MappingProxyType({k: struct.Struct("<" + c) for k, c in _SCALAR_CODES.items()})
_U32, _U64 = _SCALARS[4], _SCALARS[10]
_ARRAY_HEAD = struct.Struct("<IQ")
_TENSOR_TAIL = struct.Struct("<IQ")
# The least that an entry can take: a key's length, a type and one byte; a name's length, a
# dimension count, a type and an offset.
_LEAST_METADATA_BYTES = 13
_LEAST_TENSOR_BYTES = 24
_LEAST_ITEM_BYTES = {_STRING: 8, _ARRAY: 12} | {k: s.size for k, s in _SCALARS.items()}


class ModelFileInvalid(Exception):
    """A model file that cannot be used: not GGUF, damaged, or of a kind that is not served."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(path, problem)
        self.path = path
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}"


class Skipped(NamedTuple):
    """A value that was walked over: `length` items of an array, or bytes of a text."""

    length: int


Number = int | float | bool
Value = str | Number | tuple[Number, ...] | Skipped


class Tensor(NamedTuple):
    """One tensor as the header describes it; `size_bytes` is None for a type not known here."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int
    size_bytes: int | None


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """The header of one GGUF file. `tensors` is empty unless it was requested; tensor offsets are
    relative to `data_start`. `value_types` are GGUF's type numbers of the metadata values.
    """

    path: Path
    version: int
    metadata: Mapping[str, Value]
    num_tensors: int
    num_parameters: int
    file_bytes: int
    tensors: tuple[Tensor, ...] = ()
    data_start: int = 0
    value_types: Mapping[str, int] = field(default_factory=dict)

    def text(self, key: str) -> str | None:
        """Return a text, or None where the key is absent.

        Raises:
            ModelFileInvalid: the value is no text, or too long a one.
        """
        value = self.metadata.get(key)
        if value is None or isinstance(value, str):
            return value
        if isinstance(value, Skipped):
            raise ModelFileInvalid(self.path, f"{key} is too long ({value.length} bytes or items)")
        raise ModelFileInvalid(self.path, f"{key} is not a text")

    def integer(self, key: str) -> int | None:
        """Return a whole number, or None where the key is absent.

        Raises:
            ModelFileInvalid: the value is no whole number from 0 to 2^31 - 1.
        """
        value = self.metadata.get(key)
        if value is None:
            return None
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31:
            return value
        raise ModelFileInvalid(self.path, f"{key} is not a whole number from 0 to 2147483647")

    def integers(self, key: str) -> tuple[int, ...] | None:
        """Return an array of whole numbers (a single one as an array of one), or None.

        Raises:
            ModelFileInvalid: the value holds something else.
        """
        value = self.metadata.get(key)
        if value is None:
            return None
        if not isinstance(value, tuple) or isinstance(value, Skipped):
            number = self.integer(key)
            return None if number is None else (number,)
        numbers = tuple(n for n in value if isinstance(n, int) and 0 <= n < 2**31)
        if len(numbers) != len(value):
            raise ModelFileInvalid(self.path, f"{key} holds something else than whole numbers")
        return numbers

    def length(self, key: str) -> int | None:
        """Return how many items an array has, or None where the key is absent or no array."""
        value = self.metadata.get(key)
        if isinstance(value, Skipped):
            return value.length
        return len(value) if isinstance(value, tuple) else None


def read_header(path: Path, *, keep_tensors: bool = False) -> GgufHeader:
    """Read the header of one file.

    Args:
        keep_tensors: list every tensor, not only their number.

    Raises:
        ModelFileInvalid: the file cannot be read, is not GGUF, or contradicts itself.
    """
    try:
        with path.open("rb") as file:
            return _HeaderReader(path, FileWindow(file)).read(keep_tensors)
    except FileEnds:
        raise ModelFileInvalid(path, "the file is cut short (it ends inside its header)") from None
    except OSError as problem:
        reason = (problem.strerror or str(problem)).lower()
        raise ModelFileInvalid(path, f"it cannot be read: {reason}") from None


class _HeaderReader:
    """One pass over a header. The window raises FileEnds where the file is too short."""

    def __init__(self, path: Path, window: FileWindow) -> None:
        self._path = path
        self._window = window
        self._kept_bytes = 0
        self._value_types: dict[str, int] = {}

    def read(self, keep_tensors: bool) -> GgufHeader:
        version = self._read_version()
        num_tensors = self._window.unpack(_U64)
        num_metadata = self._window.unpack(_U64)
        self._check_count("metadata entries", num_metadata, MAX_METADATA, _LEAST_METADATA_BYTES)
        self._check_count("tensors", num_tensors, MAX_TENSORS, _LEAST_TENSOR_BYTES)
        metadata = self._read_metadata(num_metadata)
        alignment = self._alignment(metadata)
        num_parameters, data_end, tensors = self._read_tensors(num_tensors, alignment, keep_tensors)
        data_start = -(-self._window.position // alignment) * alignment
        if num_tensors and data_start + data_end > self._window.file_bytes:
            needed = data_start + data_end
            self._refuse(f"the file is cut short: {self._window.file_bytes} of {needed} bytes")
        return GgufHeader(
            path=self._path,
            version=version,
            metadata=MappingProxyType(metadata),
            num_tensors=num_tensors,
            num_parameters=num_parameters,
            file_bytes=self._window.file_bytes,
            tensors=tuple(tensors),
            data_start=data_start,
            value_types=MappingProxyType(self._value_types),
        )

    def _refuse(self, problem: str) -> NoReturn:
        raise ModelFileInvalid(self._path, problem)

    def _read_version(self) -> int:
        if self._window.file_bytes < 4 or self._window.take(4) != _MAGIC:
            self._refuse("not a GGUF file")
        version: int = self._window.unpack(_U32)
        if version & 0xFFFF == 0:
            self._refuse("a big-endian GGUF file; convert it again for this machine")
        if version not in (2, 3):
            self._refuse(f"GGUF version {version} is not supported (2 and 3 are)")
        return version

    def _check_count(self, what: str, count: int, limit: int, least_bytes: int) -> None:
        if count > limit:
            self._refuse(f"it claims {count} {what}; at most {limit} are allowed")
        if count * least_bytes > self._window.remaining:
            self._refuse(f"the file is too short for the {count} {what} it claims")

    def _read_metadata(self, count: int) -> dict[str, Value]:
        metadata: dict[str, Value] = {}
        for _ in range(count):
            key = self._read_name("a metadata key", MAX_KEY_BYTES)
            if key in metadata:
                self._refuse(f"{key!r:.80} is there twice")
            self._keep(len(key) + 64)
            self._value_types[key] = self._window.unpack(_U32)
            metadata[key] = self._read_value(key, self._value_types[key])
        return metadata

    def _read_name(self, what: str, limit: int) -> str:
        length = self._window.unpack(_U64)
        if not 0 < length <= limit:
            self._refuse(f"{what} has {length} bytes; 1 to {limit} are allowed")
        try:
            return self._window.take(length).decode()
        except UnicodeDecodeError:
            self._refuse(f"{what} is not valid UTF-8")

    def _keep(self, size: int) -> None:
        self._kept_bytes += size
        if self._kept_bytes > MAX_KEPT_BYTES:
            self._refuse(f"its metadata is over {MAX_KEPT_BYTES} bytes")

    def _read_value(self, key: str, type_id: int) -> Value:
        if type_id in _SCALARS:
            value: Number = self._window.unpack(_SCALARS[type_id])
            return value
        if type_id == _STRING:
            length = self._window.unpack(_U64)
            if length > MAX_KEPT_STRING_BYTES:
                self._window.skip(length)
                return Skipped(length)
            self._keep(length)
            return self._window.take(length).decode("utf-8", "replace")
        if type_id != _ARRAY:
            self._refuse(f"{key!r:.80} has the unknown type {type_id}")
        return self._read_array(key, depth=1)

    def _read_array(self, key: str, depth: int) -> Value:
        item_type, count = self._window.unpack_all(_ARRAY_HEAD)
        if item_type not in _LEAST_ITEM_BYTES:
            self._refuse(f"{key!r:.80} is an array of the unknown type {item_type}")
        self._check_count(
            f"items in {key!r:.80}", count, MAX_ARRAY_ITEMS, _LEAST_ITEM_BYTES[item_type]
        )
        if item_type == _STRING:
            self._window.skip_strings(count)
            return Skipped(count)
        if item_type == _ARRAY:
            if depth == MAX_ARRAY_DEPTH or count > MAX_KEPT_NUMBERS:
                self._refuse(f"{key!r:.80} nests arrays too deeply or too often")
            for _ in range(count):
                self._read_array(key, depth + 1)
            return Skipped(count)
        scalar = _SCALARS[item_type]
        if count > MAX_KEPT_NUMBERS or depth > 1:
            self._window.skip(count * scalar.size)
            return Skipped(count)
        self._keep(count * 32)
        data = self._window.take(count * scalar.size)
        return tuple(number for (number,) in scalar.iter_unpack(data))

    def _alignment(self, metadata: Mapping[str, Value]) -> int:
        value = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(value, int) or not 0 < value <= MAX_ALIGNMENT or value & (value - 1):
            self._refuse("general.alignment is not a power of two up to 1048576")
        return value

    def _read_tensors(
        self, count: int, alignment: int, keep: bool
    ) -> tuple[int, int, list[Tensor]]:
        """Return the number of weights, where the last tensor ends, and the tensors if kept."""
        num_parameters = data_end = 0
        kept: list[Tensor] = []
        for _ in range(count):
            tensor = self._read_tensor(alignment)
            num_parameters += math.prod(tensor.shape)
            data_end = max(data_end, tensor.offset + (tensor.size_bytes or 0))
            if keep:
                kept.append(tensor)
        return num_parameters, data_end, kept

    def _read_tensor(self, alignment: int) -> Tensor:
        name = self._read_name("a tensor name", MAX_TENSOR_NAME_BYTES)
        num_dimensions = self._window.unpack(_U32)
        if not 0 < num_dimensions <= MAX_DIMENSIONS:
            self._refuse(f"tensor {name!r:.80} has {num_dimensions} dimensions; 1 to 4 are allowed")
        shape = tuple(self._window.unpack(_U64) for _ in range(num_dimensions))
        items = math.prod(shape)
        if not 0 < items <= MAX_TENSOR_ITEMS:
            self._refuse(f"tensor {name!r:.80} has an impossible shape")
        type_id, offset = self._window.unpack_all(_TENSOR_TAIL)
        if type_id in REMOVED_TYPES:
            self._refuse(f"tensor {name!r:.80} has a format that llama.cpp has removed")
        if offset % alignment:
            self._refuse(f"tensor {name!r:.80} is not aligned")
        if offset > self._window.file_bytes:
            self._refuse(f"the file is cut short: tensor {name!r:.80} lies beyond its end")
        layout = TENSOR_LAYOUTS.get(type_id)
        if layout is None:
            return Tensor(name, shape, type_id, offset, None)
        if shape[0] % layout.block_items:
            self._refuse(f"tensor {name!r:.80} does not fill whole blocks of {layout.name}")
        size_bytes = items // layout.block_items * layout.block_bytes
        return Tensor(name, shape, type_id, offset, size_bytes)
