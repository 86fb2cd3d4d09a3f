"""Which slot a sequence gets, and what it may reuse."""

from array import array

from inference_svc.engine.slots import MIN_REUSED_TOKENS, SlotTable, common_prefix

PROMPT = list(range(100))


def _remember(table: SlotTable, index: int, tokens: list[int], key: bytes) -> None:
    table.slots[index].tokens = array("i", tokens)
    table.slots[index].key = key


def test_the_lowest_free_slot_is_taken_without_a_prefix() -> None:
    """Running slots stay together."""
    table = SlotTable(3)
    table.occupy(table.slots[0], 7, b"k")

    found = table.choose(array("i", PROMPT), b"k", reuse=True)

    assert found is not None
    assert (found[0].index, found[1]) == (1, 0)


def test_the_slot_with_the_longest_common_beginning_is_taken() -> None:
    """A follow-up turn finds its own slot."""
    table = SlotTable(3)
    _remember(table, 1, [*PROMPT[:40], 999], b"k")
    _remember(table, 2, PROMPT[:60], b"k")

    found = table.choose(array("i", PROMPT), b"k", reuse=True)

    assert found is not None
    assert (found[0].index, found[1]) == (2, 60)


def test_the_last_prompt_token_is_always_computed() -> None:
    """Its logits are needed."""
    table = SlotTable(1)
    _remember(table, 0, PROMPT, b"k")

    found = table.choose(array("i", PROMPT), b"k", reuse=True)

    assert found is not None
    assert found[1] == len(PROMPT) - 1


def test_another_owners_prefix_is_never_reused() -> None:
    """Cached tokens would tell what somebody else sent."""
    table = SlotTable(1)
    _remember(table, 0, PROMPT, b"theirs")

    found = table.choose(array("i", PROMPT), b"mine", reuse=True)

    assert found is not None
    assert found[1] == 0


def test_reuse_can_be_declined() -> None:
    """A request without reuse computes everything."""
    table = SlotTable(1)
    _remember(table, 0, PROMPT, b"k")

    found = table.choose(array("i", PROMPT), b"k", reuse=False)

    assert found is not None
    assert found[1] == 0


def test_a_short_common_beginning_is_not_worth_a_higher_slot() -> None:
    """A few shared tokens do not scatter running slots."""
    table = SlotTable(2)
    _remember(table, 1, PROMPT[: MIN_REUSED_TOKENS - 1], b"k")

    found = table.choose(array("i", PROMPT), b"k", reuse=True)

    assert found is not None
    assert (found[0].index, found[1]) == (0, 0)


def test_no_slot_is_found_when_all_are_taken() -> None:
    """The sequence waits."""
    table = SlotTable(1)
    table.occupy(table.slots[0], 1, b"k")

    assert table.choose(array("i", PROMPT), b"k", reuse=True) is None


def test_common_prefix_stops_at_the_first_difference() -> None:
    """The halving search finds the exact place."""
    left = array("i", [1, 2, 3, 4, 5, 9, 7])

    assert common_prefix(left, array("i", [1, 2, 3, 4, 5, 6, 7]), limit=7) == 5
    assert common_prefix(left, left, limit=4) == 4
    assert common_prefix(left, array("i", [2]), limit=7) == 0
