"""Reads headers of untrusted GGUF files (versions 2 and 3). Every count and size is bounded."""

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
_UNSET = (-1, 2**32 - 1)
# Minimum sizes. Metadata: key length, type and one byte. Tensor: name length, dimension count, type
# and offset.
_MIN_METADATA_BYTES = 13
_MIN_TENSOR_BYTES = 24
_MIN_ITEM_BYTES = {_STRING: 8, _ARRAY: 12} | {k: s.size for k, s in _SCALARS.items()}


class ModelFileInvalid(Exception):
    """A model file is not GGUF, damaged, or of an unsupported kind."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(path, problem)
        self.path = path
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}"


class Skipped(NamedTuple):
    """A value that was not stored. `length` counts items of an array, or bytes of a string."""

    length: int


Number = int | float | bool
Value = str | Number | tuple[Number, ...] | Skipped


class Tensor(NamedTuple):
    """A tensor in the header. `size_bytes` is None if the type is unknown here."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int
    size_bytes: int | None


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """The header of a GGUF file. `tensors` is empty unless requested; their offsets are relative to
    `data_start`. `value_types` has the GGUF type ids of the metadata values.
    """

    path: Path
    metadata: Mapping[str, Value]
    num_parameters: int
    file_bytes: int
    tensors: tuple[Tensor, ...] = ()
    data_start: int = 0
    value_types: Mapping[str, int] = field(default_factory=dict)

    def text(self, key: str) -> str | None:
        """Return a string, or None if the key is absent.

        Raises:
            ModelFileInvalid: the value is not a string, or too long.
        """
        value = self.metadata.get(key)
        if value is None or isinstance(value, str):
            return value
        if isinstance(value, Skipped):
            raise ModelFileInvalid(self.path, f"{key} is too long ({value.length} bytes or items)")
        raise ModelFileInvalid(self.path, f"{key} is not a string")

    def integer(self, key: str) -> int | None:
        """Return an integer, or None if the key is absent or has the value that llama.cpp saves for
        an unset one: -1, also as an unsigned integer of 32 bits.

        Raises:
            ModelFileInvalid: the value is another one than an integer from 0 to 2^31 - 1.
        """
        value = self.metadata.get(key)
        if value is None or (isinstance(value, int) and value in _UNSET):
            return None
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31:
            return value
        raise ModelFileInvalid(self.path, f"{key} is not an integer from 0 to 2147483647")

    def integers(self, key: str) -> tuple[int, ...] | None:
        """Return an array of integers (a single integer as an array of one), or None.

        Raises:
            ModelFileInvalid: the array has other values.
        """
        value = self.metadata.get(key)
        if value is None:
            return None
        if not isinstance(value, tuple) or isinstance(value, Skipped):
            number = self.integer(key)
            return None if number is None else (number,)
        numbers = tuple(n for n in value if isinstance(n, int) and 0 <= n < 2**31)
        if len(numbers) != len(value):
            raise ModelFileInvalid(self.path, f"{key} has values other than integers")
        return numbers

    def length(self, key: str) -> int | None:
        """Return the number of items of an array, or None if the key is absent or not an array."""
        value = self.metadata.get(key)
        if isinstance(value, Skipped):
            return value.length
        return len(value) if isinstance(value, tuple) else None


def read_header(path: Path, *, keep_tensors: bool = False) -> GgufHeader:
    """Read the header of one file.

    Args:
        keep_tensors: return every tensor, not only their number.

    Raises:
        ModelFileInvalid: the file cannot be read, is not GGUF, or contradicts itself.
    """
    try:
        with path.open("rb") as file:
            return _HeaderReader(path, FileWindow(file)).read(keep_tensors)
    except FileEnds:
        raise ModelFileInvalid(path, "the file is truncated (it ends inside its header)") from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ModelFileInvalid(path, f"it cannot be read: {reason}") from None


class _HeaderReader:
    """Reads a header in one pass. Raises FileEnds if the file is too short."""

    def __init__(self, path: Path, window: FileWindow) -> None:
        self._path = path
        self._window = window
        self._kept_bytes = 0
        self._value_types: dict[str, int] = {}

    def read(self, keep_tensors: bool) -> GgufHeader:
        self._check_version()
        num_tensors = self._window.unpack(_U64)
        num_metadata = self._window.unpack(_U64)
        self._check_count("metadata entries", num_metadata, MAX_METADATA, _MIN_METADATA_BYTES)
        self._check_count("tensors", num_tensors, MAX_TENSORS, _MIN_TENSOR_BYTES)
        metadata = self._read_metadata(num_metadata)
        alignment = self._alignment(metadata)
        num_parameters, data_end, tensors = self._read_tensors(num_tensors, alignment, keep_tensors)
        data_start = -(-self._window.position // alignment) * alignment
        if num_tensors and data_start + data_end > self._window.file_bytes:
            needed = data_start + data_end
            self._refuse(f"the file is truncated: {self._window.file_bytes} of {needed} bytes")
        return GgufHeader(
            path=self._path,
            metadata=MappingProxyType(metadata),
            num_parameters=num_parameters,
            file_bytes=self._window.file_bytes,
            tensors=tuple(tensors),
            data_start=data_start,
            value_types=MappingProxyType(self._value_types),
        )

    def _refuse(self, problem: str) -> NoReturn:
        raise ModelFileInvalid(self._path, problem)

    def _check_version(self) -> None:
        if self._window.file_bytes < 4 or self._window.read(4) != _MAGIC:
            self._refuse("not a GGUF file")
        version: int = self._window.unpack(_U32)
        if version & 0xFFFF == 0:
            self._refuse("a big-endian GGUF file; convert the model for a little-endian machine")
        if version not in (2, 3):
            self._refuse(f"GGUF version {version} is not supported (2 and 3 are)")

    def _check_count(self, name: str, count: int, limit: int, min_bytes: int) -> None:
        if count > limit:
            self._refuse(f"it claims {count} {name}; at most {limit} are allowed")
        if count * min_bytes > self._window.remaining:
            self._refuse(f"the file is too short for the {count} {name} it claims")

    def _read_metadata(self, count: int) -> dict[str, Value]:
        metadata: dict[str, Value] = {}
        for _ in range(count):
            key = self._read_name("a metadata key", MAX_KEY_BYTES)
            if key in metadata:
                self._refuse(f"duplicate key {key!r:.80}")
            self._reserve(len(key) + 64)
            self._value_types[key] = self._window.unpack(_U32)
            metadata[key] = self._read_value(key, self._value_types[key])
        return metadata

    def _read_name(self, kind: str, limit: int) -> str:
        length = self._window.unpack(_U64)
        if not 0 < length <= limit:
            self._refuse(f"{kind} has {length} bytes; 1 to {limit} are allowed")
        try:
            return self._window.read(length).decode()
        except UnicodeDecodeError:
            self._refuse(f"{kind} is not valid UTF-8")

    def _reserve(self, size: int) -> None:
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
            self._reserve(length)
            return self._window.read(length).decode("utf-8", "replace")
        if type_id != _ARRAY:
            self._refuse(f"{key!r:.80} has the unknown type {type_id}")
        return self._read_array(key, depth=1)

    def _read_array(self, key: str, depth: int) -> Value:
        item_type, count = self._window.unpack_all(_ARRAY_HEAD)
        if item_type not in _MIN_ITEM_BYTES:
            self._refuse(f"{key!r:.80} is an array of the unknown type {item_type}")
        self._check_count(
            f"items in {key!r:.80}", count, MAX_ARRAY_ITEMS, _MIN_ITEM_BYTES[item_type]
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
        self._reserve(count * 32)
        data = self._window.read(count * scalar.size)
        return tuple(number for (number,) in scalar.iter_unpack(data))

    def _alignment(self, metadata: Mapping[str, Value]) -> int:
        value = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(value, int) or not 0 < value <= MAX_ALIGNMENT or value & (value - 1):
            self._refuse("general.alignment is not a power of two up to 1048576")
        return value

    def _read_tensors(
        self, count: int, alignment: int, keep: bool
    ) -> tuple[int, int, list[Tensor]]:
        """Return the number of parameters, the end of the last tensor, and the kept tensors."""
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
            self._refuse(f"the file is truncated: tensor {name!r:.80} is beyond its end")
        layout = TENSOR_LAYOUTS.get(type_id)
        if layout is None:
            return Tensor(name, shape, type_id, offset, None)
        if shape[0] % layout.block_items:
            self._refuse(f"the rows of tensor {name!r:.80} are not whole blocks of {layout.name}")
        size_bytes = items // layout.block_items * layout.block_bytes
        return Tensor(name, shape, type_id, offset, size_bytes)
