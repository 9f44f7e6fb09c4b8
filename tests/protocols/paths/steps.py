"""What happens in a script: what clients, models, operators and the clock do."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tests.protocols.paths.steered_models import How
from tests.protocols.paths.written import Written, weighted, writings

CLIENTS = 3


@dataclass(frozen=True)
class Write:
    """A client has more to send, and sends all but the last `back` bytes, in pieces of `piece`."""

    client: int
    requests: tuple[Written, ...]
    back: int = 0
    piece: int = 0  # 0: in one piece


@dataclass(frozen=True)
class Go:
    """A client sends so much more of what it held back."""

    client: int
    size: int


@dataclass(frozen=True)
class Pause:
    """A client reads no more."""

    client: int


@dataclass(frozen=True)
class Take:
    """A client that reads no more takes so many bytes after all."""

    client: int
    size: int


@dataclass(frozen=True)
class Resume:
    """A client reads everything again."""

    client: int


@dataclass(frozen=True)
class Shut:
    """A client ends its sending side."""

    client: int


@dataclass(frozen=True)
class Leave:
    """A client closes its connection, whatever is under way; its next bytes come on another one."""

    client: int


@dataclass(frozen=True)
class Answer:
    """A model answers one of the requests that it has."""

    which: int
    how: How


@dataclass(frozen=True)
class Fill:
    """The queue of the model `busy` is full from now on, or has room."""

    full: bool


@dataclass(frozen=True)
class Wait:
    """Time passes."""

    seconds: float


@dataclass(frozen=True)
class Tell:
    """The operator, or the end of the server, is heard: a method of the listener is called.

    "kill" cancels all connections, as their supervisor may.
    """

    what: str


@dataclass(frozen=True)
class Nothing:
    """Nothing happens: what a step becomes that does not matter."""


@dataclass(frozen=True)
class Together:
    """Several things happen in one turn of the loop."""

    steps: tuple[Simple, ...]


Simple = Write | Go | Shut | Leave | Answer | Fill | Take | Tell
Step = Simple | Pause | Resume | Wait | Nothing | Together

_client = st.integers(0, CLIENTS - 1)
_writes = st.builds(
    Write,
    _client,
    st.lists(writings, min_size=1, max_size=4).map(tuple),
    st.sampled_from((0,) * 8 + (1, 2, 5, 40, 300)),
    st.sampled_from((0,) * 8 + (1, 7, 100, 4_096)),
)
_answers = st.builds(
    Answer, st.sampled_from((0, 0, 0, 1, 2)), st.sampled_from((How.RIGHT, How.BORROWED, How.HUGE, *How))
)
_goes = st.builds(Go, _client, st.sampled_from((1_000_000, 1, 3, 50, 1_000)))
_simple: SearchStrategy[Simple] = weighted(
    (_writes, 5),
    (_answers, 5),
    (_goes, 1),
    (st.builds(Shut, _client), 1),
    (st.builds(Leave, _client), 1),
    (st.builds(Fill, st.booleans()), 1),
)
steps: SearchStrategy[Step] = weighted(
    (st.just(Nothing()), 1),
    (_writes, 24),
    (_answers, 24),
    (_goes, 6),
    (st.builds(Pause, _client), 4),
    (st.builds(Take, _client, st.sampled_from((1, 100, 5_000, 100_000))), 4),
    (st.builds(Resume, _client), 4),
    (st.builds(Shut, _client), 2),
    (st.builds(Leave, _client), 2),
    (st.builds(Fill, st.booleans()), 3),
    (st.builds(Wait, st.sampled_from((0.5, 3.0, 40.0, 700.0))), 4),
    (st.builds(Tell, st.sampled_from(("withdraw", "give_up", "kill"))), 1),
    (st.builds(Together, st.lists(_simple, min_size=2, max_size=4).map(tuple)), 8),
)
ends: SearchStrategy[tuple[Step, ...]] = st.sampled_from(
    ((), (), (), (Tell("drain"),), (Tell("drain"), Wait(2.0), Tell("give_up")))
)


@dataclass(frozen=True)
class House:
    """How the server of a script is set up."""

    gate: bool = False
    restricted: bool = False
    forwards: bool = False
    server_timing: bool = False
    small_sockets: bool = False
    most_connections: int = 8_192
    longest_body: int = 2**31 - 1
    longest_text: int = 2**26
    room: int = 2**40  # for bodies on their way in
    portions: bool = False  # connections wait in the listener's own epoll
    tls: bool = False


houses: SearchStrategy[House] = st.builds(
    House,
    gate=st.sampled_from((False, False, False, True)),
    restricted=st.sampled_from((False, False, False, False, True)),
    forwards=st.booleans(),
    server_timing=st.booleans(),
    small_sockets=st.booleans(),
    most_connections=st.sampled_from((8_192, 8_192, 8_192, 2, 1)),
    longest_body=st.sampled_from((2**31 - 1, 2**31 - 1, 100_000)),
    longest_text=st.sampled_from((2**26, 2**26, 2**26, 5_000)),
    room=st.sampled_from((2**40, 2**40, 170_000)),
    portions=st.sampled_from((False, False, True)),
    tls=st.sampled_from((False, False, False, True)),
)


@dataclass(frozen=True)
class Script:
    """A server, and what happens to it."""

    house: House = field(default_factory=House)
    steps: tuple[Step, ...] = ()


scripts: SearchStrategy[Script] = st.builds(
    lambda house, steps, end: Script(house, (*steps, *end)),
    st.one_of(st.just(House()), houses),
    st.lists(steps, min_size=10, max_size=30),
    ends,
)


def racing(step: Step, house: House) -> bool:
    """Whether what comes first decides what comes of `step`, on either path.

    A client may leave while something happens that concerns it, or two requests want one place.
    """
    if not isinstance(step, Together):
        return False
    scarce = house.gate or house.most_connections < CLIENTS or house.room < 2**40
    return scarce or any(isinstance(each, Leave | Shut | Tell | Fill) for each in step.steps)
