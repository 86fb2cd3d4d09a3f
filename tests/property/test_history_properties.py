"""The checker of histories accepts what a correct service can answer, and rejects each mutation."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tools.check_history import MalformedHistory, Operation, check, main, parse

History = list[Operation]
OUTCOMES = st.sampled_from(["ok", "ok", "ok", "unknown", "failed"])
NUM_EVENTS = 6
LIMIT = {"amount": 3, "refill_per_s": 0.5, "excess_per_fault": 2}


class Service:
    """A correct service: each operation takes effect at one moment between its two times, is lost
    (unknown, with or without effect), or has none (failed)."""

    def __init__(self, data: st.DataObject) -> None:
        self._draw = data.draw
        self._time = 0
        self._num_items = 0
        self._items: list[str] = []
        self._run: str | None = None
        self._num_runs = 0
        self._tokens, self._filled = float(LIMIT["amount"]), 0
        self.history: History = []

    def step(self, f: str, outcome: str | None = None) -> None:
        """Carry one operation out; with an outcome, after all others have ended."""
        self._time += 30 if outcome else self._draw(st.integers(1, 3))
        early, late = (self._draw(st.sampled_from([0, 0.25, 2, 9])) for _ in range(2))
        outcome = outcome or self._draw(OUTCOMES)
        has_effect = outcome == "ok" or (outcome == "unknown" and self._draw(st.booleans()))
        asked, told = getattr(self, f"_{f}")(has_effect)
        if told == "refused":
            outcome = "failed"
        self.history.append(
            Operation(
                process=str(len(self.history)),
                f=f,
                key=f"key of {SPACES[f]}",
                asked=asked,
                told=told if outcome == "ok" or (f, outcome) == ("follow", "unknown") else None,
                outcome=outcome,
                invoked=self._time - early,
                ended=math.inf if outcome == "unknown" else self._time + late,
                line=len(self.history),
            )
        )

    def _create(self, has_effect: bool) -> tuple[Any, Any]:
        self._num_items += 1
        created = [f"item {self._num_items}"]
        self._items += created if has_effect else []
        return created, None

    def _delete(self, has_effect: bool) -> tuple[Any, Any]:
        deleted = [self._draw(st.sampled_from(self._items))] if self._items else []
        if has_effect:
            self._items = [each for each in self._items if each not in deleted]
        return deleted, None

    def _list(self, has_effect: bool) -> tuple[Any, Any]:
        return None, list(self._items)

    def _follow(self, has_effect: bool) -> tuple[Any, Any]:
        after = self._draw(st.integers(-1, NUM_EVENTS - 1))
        until = self._draw(st.integers(after, NUM_EVENTS - 1))
        events = [[number, f"event {number}"] for number in range(after + 1, until + 1)]
        is_ended = until == NUM_EVENTS - 1 and self._draw(st.booleans())
        return None, {"after": after, "events": events, "is_ended": is_ended}

    def _start(self, has_effect: bool) -> tuple[Any, Any]:
        if self._run is not None:
            return None, "refused"
        self._num_runs += 1
        if has_effect:
            self._run = f"run {self._num_runs}"
        return None, f"run {self._num_runs}"

    def _check(self, has_effect: bool) -> tuple[Any, Any]:
        """Also the end of a run."""
        run = f"run {self._draw(st.integers(1, self._num_runs))}" if self._num_runs else "no run"
        if run == self._run and self._draw(st.booleans()):
            self._run = None
        return None, {"run": run, "is_active": run == self._run}

    def _use(self, has_effect: bool) -> tuple[Any, Any]:
        self._tokens += (self._time - self._filled) * LIMIT["refill_per_s"]
        self._tokens, self._filled = min(self._tokens, LIMIT["amount"]), self._time
        if self._tokens < 1:
            return None, "refused"
        self._tokens -= has_effect
        return None, 1

    def _promise(self, has_effect: bool) -> tuple[Any, Any]:
        return None, LIMIT

    def _fault(self, has_effect: bool) -> tuple[Any, Any]:
        return None, None


SPACES = {
    **dict.fromkeys(("create", "delete", "list"), "a collection"),
    **dict.fromkeys(("start", "check"), "a thread"),
    **dict.fromkeys(("use", "promise"), "a limit"),
    "follow": "a stream",
    "fault": "a service",
}


def draw_history(data: st.DataObject, kinds: Sequence[str] = ()) -> History:
    """With operations of these kinds, and at last one of each that is ok."""
    service = Service(data)
    for f in data.draw(st.lists(st.sampled_from(kinds or sorted(SPACES)), max_size=25)):
        service.step(f)
    for f in kinds:
        service.step(f, "ok")
    return service.history


def written(history: History) -> list[str]:
    """The lines of a history, by time."""
    entries = []
    for each in history:
        about = {"process": each.process, "f": each.f, "key": each.key, "wall": 0}
        entries.append({**about, "type": "invoke", "value": each.asked, "monotonic": each.invoked})
        if each.ended != math.inf or each.told is not None:
            at = each.ended if each.ended != math.inf else each.invoked
            end = {"type": each.outcome, "value": each.told, "monotonic": at}
            entries.append({**about, **end})
    return [json.dumps(each) for each in sorted(entries, key=lambda each: float(each["monotonic"]))]


KINDS = ["", "create delete list", "follow", "start check", "promise use fault"]


@pytest.mark.parametrize("kinds", KINDS)
def test_what_a_correct_service_answers_is_accepted(kinds: str) -> None:
    """Also after it was written and read."""

    @settings(max_examples=examples(200))
    @given(st.data())
    def is_accepted(data: st.DataObject) -> None:
        history = draw_history(data, kinds.split())

        assert check(history) == []
        assert check(parse(written(history))) == []

    is_accepted()


Mutation = Callable[[st.DataObject, History], History]


def pick(data: st.DataObject, found: History) -> Operation:
    assume(found)
    return data.draw(st.sampled_from(found))


def change(history: History, one: Operation, **fields: Any) -> History:
    return [replace(each, **fields) if each is one else each for each in history]


def readings(history: History) -> History:
    return [each for each in history if each.f == "follow" and each.outcome != "failed"]


def listings(history: History, *, with_items: bool) -> History:
    lists = [each for each in history if each.f == "list" and each.outcome == "ok"]
    return [each for each in lists if each.told or not with_items]


def drop_an_event(data: st.DataObject, history: History) -> History:
    one = pick(data, [each for each in readings(history) if len(each.told["events"]) > 1])
    dropped = data.draw(st.integers(0, len(one.told["events"]) - 2))
    events = [event for index, event in enumerate(one.told["events"]) if index != dropped]
    return change(history, one, told={**one.told, "events": events})


def repeat_an_event(data: st.DataObject, history: History) -> History:
    one = pick(data, [each for each in readings(history) if each.told["events"]])
    events = [*one.told["events"], one.told["events"][-1]]
    return change(history, one, told={**one.told, "events": events})


def change_an_event(data: st.DataObject, history: History) -> History:
    """For one of its followers, or for a twin."""
    one = pick(data, [each for each in readings(history) if each.told["events"]])
    (number, _), *others = one.told["events"]
    told = {**one.told, "events": [[number, "another"], *others]}
    return [*history, replace(one, told=told)]


def end_early(data: st.DataObject, history: History) -> History:
    one = pick(data, [each for each in readings(history) if each.told["events"]])
    told = {**one.told, "events": one.told["events"][:-1], "is_ended": True}
    return [*history, replace(one, told=told)]


def double_a_line(data: st.DataObject, history: History) -> History:
    one = pick(data, listings(history, with_items=True))
    return change(history, one, told=[*one.told, one.told[0]])


def lose_an_object(data: st.DataObject, history: History) -> History:
    """One that was acknowledged before and never deleted."""
    deleted = {item for each in history if each.f == "delete" for item in each.asked}
    created = [each for each in history if each.f == "create" and each.outcome == "ok"]
    kept = {item: each for each in created for item in each.asked if item not in deleted}
    one = pick(data, listings(history, with_items=True))
    lost = [item for item in one.told if item in kept and kept[item].precedes(one)]
    assume(lost)
    return change(history, one, told=[item for item in one.told if item != lost[0]])


def lose_what_was_seen(data: st.DataObject, history: History) -> History:
    """Its creation was not acknowledged."""
    one = pick(data, listings(history, with_items=True))
    assume(not any(each.f == "delete" for each in history))
    later = replace(one, invoked=one.ended + 1, ended=one.ended + 2, told=one.told[1:])
    unknown = [
        replace(each, outcome="unknown", ended=math.inf) if each.f == "create" else each
        for each in history
    ]
    return [*unknown, later]


def list_what_nobody_created(data: st.DataObject, history: History) -> History:
    one = pick(data, listings(history, with_items=False))
    return change(history, one, told=[*one.told, "a stranger"])


def undo_a_deletion(data: st.DataObject, history: History) -> History:
    deletions = [
        each for each in history if each.f == "delete" and each.outcome == "ok" and each.asked
    ]
    one = pick(data, deletions)
    listed = pick(data, listings(history, with_items=False))
    assume(one.precedes(listed))
    return change(history, listed, told=[*listed.told, *one.asked])


def run_twice_at_once(data: st.DataObject, history: History) -> History:
    """Another run starts, and is active, while one is."""
    checks = [each for each in history if each.f == "check" and each.outcome == "ok"]
    one = pick(data, [each for each in checks if each.told["is_active"]])
    starts = [each for each in history if each.f == "start" and each.told == one.told["run"]]
    start = pick(data, starts)
    assume(start.precedes(one))
    return [
        *history,
        replace(start, told="another run"),
        replace(one, told={"run": "another run", "is_active": True}),
    ]


def revive_a_run(data: st.DataObject, history: History) -> History:
    checks = [each for each in history if each.f == "check" and each.outcome == "ok"]
    one = pick(data, [each for each in checks if not each.told["is_active"]])
    told = {**one.told, "is_active": True}
    return [*history, replace(one, invoked=one.ended + 1, ended=one.ended + 2, told=told)]


def exceed_a_limit(data: st.DataObject, history: History) -> History:
    uses = [each for each in history if each.f == "use" and each.outcome == "ok"]
    one = pick(data, uses)
    most = LIMIT["amount"] + LIMIT["refill_per_s"] * (one.ended - one.invoked)
    promise = replace(one, f="promise", told=LIMIT)
    return [*(each for each in history if each.f != "fault"), promise, replace(one, told=most + 1)]


@pytest.mark.parametrize(
    ("mutate", "rule", "kinds"),
    [
        (drop_an_event, "gap", "follow"),
        (repeat_an_event, "gap", "follow"),
        (change_an_event, "unequal", "follow"),
        (end_early, "unequal", "follow"),
        (double_a_line, "doubled", "create delete list"),
        (lose_an_object, "lost", "create list"),
        (lose_what_was_seen, "lost", "create list"),
        (list_what_nobody_created, "invented", "create list"),
        (undo_a_deletion, "undone", "create delete list"),
        (run_twice_at_once, "unlocked", "start check"),
        (revive_a_run, "revived", "start check"),
        (exceed_a_limit, "exceeded", "use fault"),
    ],
)
def test_each_mutation_is_rejected(mutate: Mutation, rule: str, kinds: str) -> None:
    """By its rule; Hypothesis shrinks a history that is not."""

    @settings(max_examples=examples(100))
    @given(st.data())
    def is_rejected(data: st.DataObject) -> None:
        history = draw_history(data, kinds.split())
        assert rule not in {each.rule for each in check(history)}

        assert rule in {each.rule for each in check(mutate(data, history))}

    is_rejected()


def test_a_limit_has_the_excess_of_the_faults_in_a_span() -> None:
    """And what is refilled: the fifth use after ten seconds is too many without a fault."""

    def operation(f: str, begin: float, end: float, told: Any = None) -> Operation:
        about: Any = {"process": f"{f} {begin}", "f": f, "key": "limit", "asked": None, "line": 1}
        return Operation(invoked=begin, ended=end, told=told, outcome="ok", **about)

    promise = {"amount": 3, "refill_per_s": 0.1, "excess_per_fault": 1}
    history = [operation("promise", 0, 0, promise)]
    history += [operation("use", at, at, 1) for at in (10, 10, 10, 10, 20)]

    assert [each.rule for each in check(history)] == ["exceeded"]
    assert [each.rule for each in check([*history, operation("fault", 5, 9)])] == ["exceeded"]
    assert check([*history, operation("fault", 5, 10)]) == []


INVOKE = (
    '{"type": "invoke", "process": "a", "f": "list", "key": "files", "wall": 1, "monotonic": 5}'
)


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (["[]"], "line 1: it is not an object"),
        ([INVOKE.replace('"a"', "1")], "line 1: process must be a text"),
        ([INVOKE.replace('"wall": 1', '"wall": "1"')], "line 1: wall must be a number of seconds"),
        ([INVOKE.replace("invoke", "info")], "line 1: type must be invoke, ok, failed or unknown"),
        ([INVOKE.replace('"list"', '"lists"')], "line 1: f must be one of create, delete, list"),
        ([INVOKE, INVOKE], "line 2: process 'a' has not ended its operation"),
        ([INVOKE.replace("invoke", "failed")], "line 1: process 'a' has no operation that could"),
        ([INVOKE, INVOKE.replace("invoke", "ok")], "line 2: the value of list must be a list of"),
        (
            [INVOKE, INVOKE.replace("invoke", "failed").replace("files", "b")],
            "line 2: it ends",
        ),
        (
            [INVOKE, INVOKE.replace("invoke", "failed").replace("5}", "4}")],
            "line 2: monotonic is before the invocation",
        ),
    ],
)
def test_what_is_no_history_is_refused(lines: list[str], problem: str) -> None:
    with pytest.raises(MalformedHistory) as refused:
        parse(lines)

    assert str(refused.value).startswith(problem)


def test_the_command_reports_each_violation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the lines that show it; its exit code says whether there are any."""
    path = tmp_path / "history.jsonl"
    path.write_text(f'{INVOKE}\n{INVOKE[:-1].replace("invoke", "ok")}, "value": ["x"]}}\n')
    code = main([str(path)])

    assert code == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{path}: 1 operations of 1 processes: list 1 ok",
        "  invented: files: 'x' is listed, and nobody had created it (lines 2)",
        "  1 violations",
    ]
    path.write_text("")
    assert main([str(path)]) == 0
    path.write_text("x")
    assert main([str(path)]) == 2
