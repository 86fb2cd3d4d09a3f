"""Checks histories: what clients asked and were told while faults were injected.

`python -m tools.check_history FILE...` prints the violations of each file and exits with 1 if there
are any, with 2 if a file is no history. It needs no server and no package; the format is in
docs/understand/histories.md, and the drill that writes such files in tests/chaos/test_history.py.
"""

import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeGuard

OUTCOMES: Final = ("ok", "failed", "unknown")


class MalformedHistory(ValueError):
    """A line is not in the format; the message begins with its number."""


@dataclass(frozen=True, kw_only=True)
class Operation:
    """What one process asked, and what it was told."""

    process: str
    f: str
    key: str
    asked: Any
    """The value of its invocation."""
    told: Any = None
    """The value of its end."""
    outcome: str = "unknown"
    invoked: float
    """In seconds, as `ended`."""
    ended: float = math.inf
    line: int
    """The line of its end; of its invocation if it has none."""

    def precedes(self, other: "Operation") -> bool:
        """Whether it ended before the other one began."""
        return self.ended < other.invoked


class Violation(NamedTuple):
    """A promise that was broken; `lines` of the file show it."""

    rule: str
    key: str
    text: str
    lines: tuple[int, ...]


# --- the format


def _is_items(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value)


def _is_reading(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("after"), int)
        and isinstance(value.get("is_ended"), bool)
        and isinstance(value.get("events"), list)
        and all(
            isinstance(each, list) and len(each) == 2 and isinstance(each[0], int)
            for each in value["events"]
        )
    )


def _is_state(value: Any) -> bool:
    names = {"run": str, "is_active": bool}
    return isinstance(value, dict) and all(isinstance(value.get(n), t) for n, t in names.items())


def _is_promise(value: Any) -> bool:
    names = ("amount", "refill_per_s", "excess_per_fault")
    return isinstance(value, dict) and all(_is_number(value.get(name)) for name in names)


class _Shape(NamedTuple):
    """What the values of a kind of operation are."""

    words: str
    is_valid: Callable[[Any], bool]
    in_invocation: bool = False
    """Whether the invocation has the value, else the end with the outcome ok."""


SHAPES: Final[Mapping[str, _Shape]] = {
    "create": _Shape("a list of texts", _is_items, in_invocation=True),
    "delete": _Shape("a list of texts", _is_items, in_invocation=True),
    "list": _Shape("a list of texts", _is_items),
    "follow": _Shape("an object with after, events and is_ended", _is_reading),
    "start": _Shape("a text", lambda value: isinstance(value, str)),
    "check": _Shape("an object with run and is_active", _is_state),
    "use": _Shape("a number", _is_number),
    "promise": _Shape("an object with amount, refill_per_s and excess_per_fault", _is_promise),
    "fault": _Shape("anything", lambda _: True),
}


def parse(lines: Iterable[str]) -> list[Operation]:
    """The operations in the order of their ends. Raises MalformedHistory."""
    open_operations: dict[str, Operation] = {}
    operations: list[Operation] = []
    for number, text in enumerate(lines, 1):
        try:
            entry = _parse_line(text)
            process = entry["process"]
            if entry["type"] == "invoke":
                if process in open_operations:
                    raise ValueError(f"process {process!r} has not ended its operation")
                open_operations[process] = _invoked(entry, number)
            else:
                if process not in open_operations:
                    raise ValueError(f"process {process!r} has no operation that could end")
                operations.append(_ended(open_operations.pop(process), entry, number))
        except ValueError as error:
            raise MalformedHistory(f"line {number}: {error}") from error
    return [*operations, *open_operations.values()]


def _parse_line(text: str) -> dict[str, Any]:
    entry = json.loads(text)
    if not isinstance(entry, dict):
        raise ValueError("it is not an object")
    for name in ("type", "process", "f", "key"):
        if not isinstance(entry.get(name), str):
            raise ValueError(f"{name} must be a text")
    for name in ("wall", "monotonic"):
        if not _is_number(entry.get(name)):
            raise ValueError(f"{name} must be a number of seconds")
    if entry["type"] not in ("invoke", *OUTCOMES):
        raise ValueError("type must be invoke, ok, failed or unknown")
    if entry["f"] not in SHAPES:
        raise ValueError(f"f must be one of {', '.join(SHAPES)}")
    shape, value = SHAPES[entry["f"]], entry.get("value")
    has_value = entry["type"] == ("invoke" if shape.in_invocation else "ok")
    is_broken_reading = entry["type"] == "unknown" and entry["f"] == "follow" and value is not None
    if (has_value or is_broken_reading) and not shape.is_valid(value):
        raise ValueError(f"the value of {entry['f']} must be {shape.words}")
    return entry


def _invoked(entry: Mapping[str, Any], line: int) -> Operation:
    return Operation(
        process=entry["process"],
        f=entry["f"],
        key=entry["key"],
        asked=entry.get("value"),
        invoked=entry["monotonic"],
        line=line,
    )


def _ended(begun: Operation, entry: Mapping[str, Any], line: int) -> Operation:
    if (entry["f"], entry["key"]) != (begun.f, begun.key):
        raise ValueError(f"it ends {begun.f} of {begun.key!r}, but has another f or key")
    if entry["monotonic"] < begun.invoked:
        raise ValueError("monotonic is before the invocation")
    return Operation(
        process=begun.process,
        f=begun.f,
        key=begun.key,
        asked=begun.asked,
        invoked=begun.invoked,
        told=entry.get("value"),
        outcome=entry["type"],
        # What is unknown may still be carried out later.
        ended=math.inf if entry["type"] == "unknown" else entry["monotonic"],
        line=line,
    )


# --- the rules


def check_collection(key: str, operations: Sequence[Operation]) -> Iterator[Violation]:
    """What was acknowledged is listed once until it is deleted, and nothing else is."""
    creations, deletions = _by_item(operations, "create"), _by_item(operations, "delete")
    known = {item: each for item, own in creations.items() for each in own if each.outcome == "ok"}
    seen: dict[str, Operation] = {}
    lists = [each for each in operations if each.f == "list" and each.outcome == "ok"]
    for listed in sorted(lists, key=lambda each: each.ended):
        for item, count in Counter(listed.told).items():
            if count > 1:
                text = f"{item!r} is listed {count} times"
                yield Violation("doubled", key, text, (listed.line,))
            if not any(each.invoked < listed.ended for each in creations.get(item, ())):
                text = f"{item!r} is listed, and nobody had created it"
                yield Violation("invented", key, text, (listed.line,))
            for deletion in deletions.get(item, ()):
                if deletion.outcome == "ok" and deletion.precedes(listed):
                    text = f"{item!r} is listed, and was deleted before"
                    yield Violation("undone", key, text, (deletion.line, listed.line))
        for item in (known | seen).keys() - set(listed.told):
            proofs = (by_item[item] for by_item in (known, seen) if item in by_item)
            proof = next((each for each in proofs if each.precedes(listed)), None)
            may_be_deleted = any(each.invoked < listed.ended for each in deletions.get(item, ()))
            if proof is not None and not may_be_deleted:
                text = f"{item!r} was there, was not deleted, and is not listed"
                yield Violation("lost", key, text, (proof.line, listed.line))
        seen = dict.fromkeys(listed.told, listed) | seen


def _by_item(operations: Sequence[Operation], f: str) -> dict[str, list[Operation]]:
    """The operations that may have had an effect, by their items."""
    found = defaultdict[str, list[Operation]](list)
    for each in operations:
        if each.f == f and each.outcome != "failed":
            for item in each.asked:
                found[item].append(each)
    return found


def check_stream(key: str, operations: Sequence[Operation]) -> Iterator[Violation]:
    """The events of a stream are gapless and equal for all followers, and it ends for all at the
    same event."""
    events: dict[int, tuple[Any, int]] = {}
    ends: dict[int, int] = {}
    for each in (each for each in operations if each.outcome != "failed" and each.told):
        after, numbers = each.told["after"], [number for number, _ in each.told["events"]]
        for expected, number in enumerate(numbers, after + 1):
            if number != expected:
                text = f"event {expected} is missing or repeated: {number} came instead"
                yield Violation("gap", key, text, (each.line,))
                break
        for number, event in each.told["events"]:
            other, line = events.setdefault(number, (event, each.line))
            if other != event:
                text = f"event {number} is {event!r} for one follower and {other!r} for another"
                yield Violation("unequal", key, text, (line, each.line))
                break
        if each.told["is_ended"]:
            ends.setdefault(max(numbers, default=after), each.line)
    last = max([*events, *ends], default=0)
    for end, line in ends.items():
        if end != last:
            text = f"it ends at event {end} for one follower, and another one has event {last}"
            other_line = events[last][1] if last in events else ends[last]
            yield Violation("unequal", key, text, (line, other_line))


def check_runs(key: str, operations: Sequence[Operation]) -> Iterator[Violation]:
    """A thread has one active run at a time, and what has ended stays so.

    A run is surely active from the time when its start was acknowledged until the last time when
    somebody asked, and was told, that it is.
    """
    checks = [each for each in operations if each.f == "check" and each.outcome == "ok"]
    active = [each for each in checks if each.told["is_active"]]
    yield from _check_ends(key, active, [each for each in checks if not each.told["is_active"]])
    last = {each.told["run"]: each for each in sorted(active, key=lambda each: each.invoked)}
    spans = [
        (started.ended, last[started.told].invoked, started.told, last[started.told].line)
        for started in operations
        if started.f == "start" and started.outcome == "ok" and started.told in last
    ]
    for one, other in combinations(spans, 2):
        if one[2] != other[2] and max(one[0], other[0]) < min(one[1], other[1]):
            text = f"runs {one[2]} and {other[2]} were active at once"
            yield Violation("unlocked", key, text, (one[3], other[3]))


def _check_ends(
    key: str, active: Sequence[Operation], inactive: Sequence[Operation]
) -> Iterator[Violation]:
    for end in inactive:
        for later in active:
            if later.told["run"] == end.told["run"] and end.precedes(later):
                text = f"run {end.told['run']} had ended, and is active"
                yield Violation("revived", key, text, (end.line, later.line))


def check_limit(
    key: str, operations: Sequence[Operation], faults: Sequence[Operation]
) -> Iterator[Violation]:
    """In no span of time more is used than the amount, what is refilled in that time, and the
    promised excess of the faults in it. The worst span is reported."""
    promises = [each.told for each in operations if each.f == "promise" and each.outcome == "ok"]
    if not promises:
        return
    amount, refill_per_s, excess = (
        promises[0][name] for name in ("amount", "refill_per_s", "excess_per_fault")
    )
    used = [each for each in operations if each.f == "use" and each.outcome == "ok"]
    used.sort(key=lambda each: each.ended)
    worst: tuple[float, Violation] | None = None
    for begin in used:
        total = 0.0
        for each in used:
            if each.invoked < begin.invoked:
                continue
            total += each.told
            span = each.ended - begin.invoked
            num_faults = 0
            if excess:
                num_faults = sum(
                    fault.invoked <= each.ended and fault.ended >= begin.invoked for fault in faults
                )
            beyond = total - (amount + refill_per_s * span + excess * num_faults)
            if beyond > 1e-6 and (worst is None or beyond > worst[0]):
                text = f"{total:g} were used in {span:.3f} s, {beyond:g} more than promised"
                worst = beyond, Violation("exceeded", key, text, (begin.line, each.line))
    if worst is not None:
        yield worst[1]


def check(operations: Sequence[Operation]) -> list[Violation]:
    """All violations of a history."""
    by_key = defaultdict[str, list[Operation]](list)
    for each in operations:
        by_key[each.key].append(each)
    faults = [each for each in operations if each.f == "fault"]
    return [
        violation
        for key, own in by_key.items()
        for violation in (
            *check_collection(key, own),
            *check_stream(key, [each for each in own if each.f == "follow"]),
            *check_runs(key, own),
            *check_limit(key, own, faults),
        )
    ]


# --- the command


def summarize(operations: Sequence[Operation]) -> str:
    """What a history has, so that one that proves nothing is noticed."""
    outcomes = Counter((each.f, each.outcome) for each in operations)
    kinds = ", ".join(
        f"{f} {' '.join(f'{outcomes[f, o]} {o}' for o in OUTCOMES if outcomes[f, o])}"
        for f in SHAPES
        if any(outcomes[f, o] for o in OUTCOMES)
    )
    processes = len({each.process for each in operations})
    return f"{len(operations)} operations of {processes} processes: {kinds}"


def main(paths: Sequence[str]) -> int:
    """Check files; return the exit code."""
    code = 0
    for path in paths:
        try:
            with Path(path).open(encoding="utf-8") as lines:
                operations = parse(lines)
        except (OSError, MalformedHistory) as error:
            print(f"{path}: {error}", file=sys.stderr)
            return 2
        violations = check(operations)
        print(f"{path}: {summarize(operations)}")
        for rule, key, text, shown in violations:
            print(f"  {rule}: {key}: {text} (lines {', '.join(map(str, shown))})")
        print(f"  {len(violations)} violations")
        code = max(code, int(bool(violations)))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
