"""Who comes next is who was served least."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from inference_svc.engine.scheduler.fairness import FairShare, FairTurns


def test_equal_takers_get_equal_cost_whatever_a_turn_costs() -> None:
    """One with turns ten times as dear gets a tenth of the turns."""
    turns: FairTurns[str] = FairTurns()
    costs = {"dear": 10.0, "cheap": 1.0}
    served: Counter[str] = Counter()
    for _ in range(1100):
        taker = turns.next(costs)
        turns.charge(taker, costs[taker])
        served[taker] += 1

    assert served == {"dear": 100, "cheap": 1000}


def test_rest_is_no_credit() -> None:
    """Who comes back after others were served for long does not get everything."""
    turns: FairTurns[str] = FairTurns()
    for _ in range(100):
        turns.charge(turns.next(["a"]), 1)
    order = []
    for _ in range(6):
        order.append(turns.next(["a", "b"]))
        turns.charge(order[-1], 1)

    assert sorted(order) == ["a", "a", "a", "b", "b", "b"]


def test_a_debt_stays_over_a_pause() -> None:
    """Who took a dear turn and left does not come back as one that took nothing."""
    turns: FairTurns[str] = FairTurns()
    turns.charge(turns.next(["a", "b"]), 5)
    turns.charge(turns.next(["b"]), 1)

    assert turns.next(["a", "b"]) == "b"


@given(
    st.lists(
        st.tuples(st.sets(st.sampled_from("abcd"), min_size=1), st.floats(0.1, 10)), max_size=200
    )
)
def test_nobody_who_keeps_asking_falls_behind(rounds: list[tuple[set[str], float]]) -> None:
    """Beside whoever comes and goes, one that always asks waits for at most one turn of each."""
    turns: FairTurns[str] = FairTurns()
    waited = 0.0
    for others, cost in rounds:
        taker = turns.next(["always", *sorted(others)])
        turns.charge(taker, cost)
        waited = 0.0 if taker == "always" else waited + cost
        assert waited <= 4 * 10 * 2


def test_being_away_earns_nothing_and_a_debt_stays() -> None:
    """Who comes back stands where the least served one does, or where it stood."""
    shares = FairShare[str]()
    shares.enter("steady")
    shares.charge("steady", 100)
    shares.enter("new")
    assert shares.served("new") == 100

    shares.charge("new", 50)
    shares.leave("new")
    shares.enter("new")
    assert shares.served("new") == 150
    shares.leave("new")
    shares.leave("steady")
    assert shares.served("new") == shares.served("steady") == 0
