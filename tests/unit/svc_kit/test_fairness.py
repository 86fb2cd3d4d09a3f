"""Fair queuing between clients."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from svc_kit.fairness import FairShare, FairTurns


def test_clients_get_equal_service_whatever_a_turn_costs() -> None:
    """A client whose turns cost ten times as much gets a tenth of the turns."""
    turns: FairTurns[str] = FairTurns()
    costs = {"expensive": 10.0, "cheap": 1.0}
    num_turns: Counter[str] = Counter()
    for _ in range(1100):
        client = turns.next(costs)
        turns.charge(client, costs[client])
        num_turns[client] += 1

    assert num_turns == {"expensive": 100, "cheap": 1000}


def test_an_idle_client_earns_no_credit() -> None:
    """After a pause it shares turns equally, instead of catching up."""
    turns: FairTurns[str] = FairTurns()
    turns.charge(turns.next(["b"]), 1)
    for _ in range(100):
        turns.charge(turns.next(["a"]), 1)
    order = []
    for _ in range(6):
        order.append(turns.next(["a", "b"]))
        turns.charge(order[-1], 1)

    assert sorted(order) == ["a", "a", "a", "b", "b", "b"]


def test_a_pause_does_not_clear_earlier_service() -> None:
    """A client that returns after an expensive turn is not treated as a new one."""
    turns: FairTurns[str] = FairTurns()
    turns.charge(turns.next(["a", "b"]), 5)
    turns.charge(turns.next(["b"]), 1)

    assert turns.next(["a", "b"]) == "b"


@given(
    st.lists(
        st.tuples(st.sets(st.sampled_from("abcd"), min_size=1), st.floats(0.1, 10)), max_size=200
    )
)
def test_a_client_that_is_always_ready_is_not_starved(
    rounds: list[tuple[set[str], float]],
) -> None:
    """While others come and go, it waits for a bounded cost."""
    turns: FairTurns[str] = FairTurns()
    waited = 0.0
    for others, cost in rounds:
        client = turns.next(["always", *sorted(others)])
        turns.charge(client, cost)
        waited = 0.0 if client == "always" else waited + cost
        assert waited <= 4 * 10 * 2


def test_a_returning_client_has_at_least_the_minimum_service() -> None:
    """The minimum of the active clients, or its own earlier service if that is higher."""
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
