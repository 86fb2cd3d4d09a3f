"""Which connections are closed while there are too many."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from svc_kit.connection_watch import PeerConnection, excess, fair_share

COUNTS = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 50), min_size=1)


@given(COUNTS, st.integers(1, 100))
def test_addresses_share_the_limit(counts: dict[str, int], limit: int) -> None:
    """The share is the largest with which all have at most the limit, and never 0."""
    share = fair_share(counts, limit)

    def kept(each: int) -> int:
        return sum(min(count, each) for count in counts.values())

    assert share == 1 or kept(share) <= limit
    assert sum(counts.values()) <= limit or kept(share + 1) > limit


@given(COUNTS, st.integers(1, 100))
def test_an_address_within_its_share_keeps_all(counts: dict[str, int], limit: int) -> None:
    """Of the others, those that were silent longest are closed."""
    connections = [
        PeerConnection(0, peer, silent_ms)
        for peer, count in counts.items()
        for silent_ms in range(count)
    ]
    share = fair_share(counts, limit)
    left = Counter({peer: max(0, count - share) for peer, count in counts.items()})

    closed = excess(connections, limit)

    assert Counter(each.peer for each in closed) == +left
    assert all(each.silent_ms >= share for each in closed)
