"""Who goes first of many connections that are ready at once, and how many go in one turn."""

from protocols.transport.portions import Portions

MANY = 1000


def crowd(portions, name, *, gone=False, used=False):
    for number in range(MANY):
        portions.add((name, number), gone=gone, used=used)


def turns(portions):
    """Return what goes in each turn, until nothing is left."""
    taken = []
    while portions:
        taken.append(portions.take())
    return taken


def test_a_turn_takes_few_of_a_crowd_and_all_go_in_the_order_in_which_they_were_ready():
    portions: Portions[tuple[str, int]] = Portions()
    crowd(portions, "quiet")
    assert len(portions) == MANY
    every = turns(portions)
    assert max(map(len, every)) <= MANY / 10
    assert [number for turn in every for _, number in turn] == list(range(MANY))
    assert len(portions) == 0


def test_connections_in_use_wait_for_no_crowd():
    portions: Portions[tuple[str, int]] = Portions()
    crowd(portions, "quiet")
    crowd(portions, "gone", gone=True)
    portions.add(("in use", 0), gone=False, used=True)
    assert ("in use", 0) in portions.take()


def test_no_crowd_keeps_another_from_its_turns():
    portions: Portions[tuple[str, int]] = Portions()
    crowd(portions, "used", used=True)
    crowd(portions, "quiet")
    crowd(portions, "gone", gone=True, used=True)
    for _ in range(5):
        assert {name for name, _ in portions.take()} == {"used", "quiet", "gone"}


def test_fewer_go_in_a_turn_whose_client_has_left():
    quiet: Portions[tuple[str, int]] = Portions()
    gone: Portions[tuple[str, int]] = Portions()
    crowd(quiet, "quiet")
    crowd(gone, "gone", gone=True)
    assert len(gone.take()) < len(quiet.take())


def test_nothing_is_taken_where_nothing_is_ready():
    assert Portions().take() == []
