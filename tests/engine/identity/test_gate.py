"""The gate: who is at a connection, and what the rules in force let them do."""

import gc
import weakref

import pytest

from actors.values.callers import Action, Peer, presented
from actors.values.errors import PermissionDenied, TooManyRequests, Unauthenticated
from engine.identity.document import read_auth_file
from engine.identity.gate import LONGEST_MODEL, MOST_DECISIONS, MOST_VERDICTS, Book, Gate
from engine.identity.keys import digest_of
from engine.identity.rules import Identity
from engine.identity.tokens import Proven, Tokens

RULES = """
[[key]]
id = "k1"
name = "alice"
digest = "{alice}"
groups = ["team"]

[[key]]
id = "k2"
name = "bob"
digest = "{bob}"
expires = 1970-01-01T01:00:00Z

[[key]]
id = "k3"
name = "carol"
digest = "{alice}"
revoked = true

[[certificate]]
subject = "CN=dave"
name = "dave"

[[rule]]
for = ["group:team", "bob", "dave"]
allow = ["inference", "metadata"]
models = ["open*"]

[[limit]]
for = ["bob"]
requests_per_second = 1
concurrent = 1
"""


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class KnownTokens(Tokens):
    """Takes the tokens that it is told of, and counts how often it is asked."""

    def __init__(self):
        super().__init__({}, {})
        self.good = {}
        self.asked = 0

    def prove(self, token, now):
        self.asked += 1
        if token not in self.good:
            raise Unauthenticated("the token is not good: unknown", invalid=True)
        return self.good[token]


class Setting:
    def __init__(self, text=RULES):
        self.clock, self.tokens = Clock(), KnownTokens()
        self.told: list[tuple[str, str]] = []
        self.namespaces: dict[str, str] = {}
        self.gate = Gate(
            self.book(text),
            now=self.clock,
            wall_clock=self.clock,
            namespaces=lambda model: self.namespaces.get(model, ""),
            on_refusal=lambda name, error: self.told.append((name, error.message)),
        )

    def book(self, text=RULES):
        file = read_auth_file(text.format(alice=digest_of("a"), bob=digest_of("b")), "auth.toml")
        return Book(file, self.tokens)


@pytest.fixture
def setting():
    return Setting()


ALICE = b"Bearer k1.a"


def test_a_key_names_its_identity_on_any_connection(setting):
    for peer in (Peer(), Peer("192.0.2.1"), Peer("", ("CN=dave",))):
        assert setting.gate.identify(ALICE, peer).name == "alice"


def test_without_credentials_a_certificate_counts_and_then_nothing(setting):
    assert setting.gate.identify(b"", Peer("", ("CN=other", "CN=dave"))).name == "dave"
    assert setting.gate.identify(b"", Peer("", ("CN=other",))).name == "anonymous"
    assert setting.gate.identify(b"", Peer()).name == "anonymous"


@pytest.mark.parametrize(
    ("field", "said"),
    [
        (b"Bearer k1.b", "the API key is not good"),
        (b"Bearer k9.a", "the API key is not good"),
        (b"Bearer k9", "the API key is not good"),
        (b"Bearer .", "the API key is not good"),
        (b"Bearer k3.a", "the API key 'k3' was revoked"),
        (b"Bearer k3.b", "the API key is not good"),
        (b"Basic azE6YQ==", "the Authorization is not understood"),
        (b"Bearer a.b.c", "the token is not good"),
    ],
)
def test_bad_credentials_are_never_overlooked(setting, field, said):
    for peer in (Peer(), Peer("", ("CN=dave",))):
        with pytest.raises(Unauthenticated, match=said) as refused:
            setting.gate.identify(field, peer)
        assert refused.value.invalid
    assert setting.gate.refusals == {("", "unauthenticated"): 2}


def test_a_connection_that_was_good_is_not_good_with_other_credentials(setting):
    peer = Peer()
    assert setting.gate.identify(ALICE, peer).name == "alice"
    with pytest.raises(Unauthenticated):
        setting.gate.identify(b"Bearer k1.x", peer)
    assert setting.gate.identify(b"", peer).name == "anonymous"
    peer.names = ("CN=dave",)
    assert setting.gate.identify(b"", peer).name == "dave"


def test_a_key_ends_on_a_connection_that_it_opened(setting):
    peer = Peer()
    assert setting.gate.identify(b"Bearer k2.b", peer).name == "bob"
    setting.clock.now = 3600.0
    with pytest.raises(Unauthenticated, match="'k2' has expired"):
        setting.gate.identify(b"Bearer k2.b", peer)


def test_a_token_is_proved_once_and_again_when_it_may_have_expired(setting):
    token = b"Bearer a.b.c"
    setting.tokens.good["a.b.c"] = Proven(Identity(name="jwt:eve"), 10.0)
    for _ in range(3):
        assert setting.gate.identify(token, Peer()).name == "jwt:eve"
    assert setting.tokens.asked == 1
    peer = Peer()
    setting.gate.identify(token, peer)
    setting.clock.now = 10.0
    del setting.tokens.good["a.b.c"]
    with pytest.raises(Unauthenticated):
        setting.gate.identify(token, peer)
    with pytest.raises(Unauthenticated):
        setting.gate.identify(token, Peer())


def test_proofs_that_are_kept_are_bounded(setting):
    for number in range(MOST_VERDICTS + 1):
        setting.tokens.good[f"a.b.{number}"] = Proven(Identity(name="jwt:eve"), 10.0)
        setting.gate.identify(b"Bearer a.b.%d" % number, Peer())
    setting.gate.identify(b"Bearer a.b.1", Peer())
    assert setting.tokens.asked == MOST_VERDICTS + 1
    setting.gate.identify(b"Bearer a.b.0", Peer())
    assert setting.tokens.asked == MOST_VERDICTS + 2


def test_rules_let_in_by_model(setting):
    caller = setting.gate.identify(ALICE, Peer())
    caller.admit(Action.INFERENCE, "open1")
    caller.require(Action.INFERENCE)
    assert caller.may(Action.METADATA, "open1")
    assert not caller.may(Action.METADATA, "closed")
    with pytest.raises(PermissionDenied, match="'alice' may not use 'inference' on model 'closed'"):
        caller.admit(Action.INFERENCE, "closed")
    with pytest.raises(PermissionDenied, match="'alice' may not use 'trace': no rule"):
        caller.require(Action.TRACE)
    assert setting.gate.refusals == {("alice", "permission_denied"): 2}
    assert [name for name, _ in setting.told] == ["alice", "alice"]


def test_the_anonymous_are_told_to_show_credentials(setting):
    caller = setting.gate.identify(b"", Peer())
    with pytest.raises(Unauthenticated, match="'inference' on model 'open' takes credentials") as refused:
        caller.admit(Action.INFERENCE, "open")
    assert refused.value.challenge == 'Bearer realm="tritium"'
    caller.admit(Action.HEALTH)


def test_verdicts_that_are_kept_are_bounded(setting):
    caller = setting.gate.identify(ALICE, Peer())
    for number in range(MOST_DECISIONS + 10):
        caller.require(Action.INFERENCE, f"open{number}")
        assert caller.may(Action.INFERENCE, f"open{number}")
    assert not caller.may(Action.INFERENCE, "closed")


def test_no_name_that_no_model_can_have_is_kept_or_looked_for_in_patterns(setting):
    caller = setting.gate.identify(ALICE, Peer())
    assert caller.may(Action.INFERENCE, "open" + "x" * (LONGEST_MODEL - 4))
    too_long = "open" + "x" * (LONGEST_MODEL - 3)
    assert not caller.may(Action.INFERENCE, too_long)
    with pytest.raises(PermissionDenied) as refused:
        caller.admit(Action.INFERENCE, too_long * 1000)
    assert len(refused.value.message) < 300


def test_limits_hold_for_an_identity_over_all_its_connections(setting):
    one, two = (setting.gate.identify(b"Bearer k2.b", Peer()) for _ in range(2))
    one.admit(Action.INFERENCE, "open")
    with pytest.raises(TooManyRequests, match="'bob' may make 1 requests a second") as refused:
        two.admit(Action.INFERENCE, "open")
    assert 0 < refused.value.retry_after <= 1
    two.admit(Action.HEALTH)
    one.begin()
    with pytest.raises(TooManyRequests, match="'bob' may make 1 inferences at a time"):
        two.begin()
    one.end()
    two.begin()
    two.end()
    one.received(10)


def test_keys_of_one_name_have_an_account_for_each_set_of_groups():
    both = """
[[key]]
id = "k1"
digest = "{alice}"
name = "ci"
groups = ["slow"]
[[key]]
id = "k2"
digest = "{bob}"
name = "ci"
groups = ["fast"]
[[rule]]
for = ["ci"]
allow = ["*"]
[[limit]]
for = ["group:slow"]
requests_per_second = 1
[[limit]]
for = ["group:fast"]
requests_per_second = 2
"""
    setting = Setting(both)
    slow, fast = (setting.gate.identify(key, Peer()) for key in (ALICE, b"Bearer k2.b"))
    slow.admit(Action.INFERENCE, "m")
    for _ in range(2):
        fast.admit(Action.INFERENCE, "m")
    for caller, rate in ((slow, 1), (fast, 2)):
        with pytest.raises(TooManyRequests, match=f"'ci' may make {rate} requests a second"):
            caller.admit(Action.INFERENCE, "m")
    assert setting.gate.admitted() == {"ci": 3}


def test_another_file_counts_at_once_on_open_connections(setting):
    peer = Peer()
    old = setting.gate.identify(ALICE, peer)
    setting.gate.adopt(setting.book(RULES.replace('"alice"', '"alice2"')))
    assert setting.gate.identify(ALICE, peer).name == "alice2"
    setting.gate.adopt(setting.book("[[key]]\nid = 'k9'\ndigest = '{alice}'\n"))
    with pytest.raises(Unauthenticated):
        setting.gate.identify(ALICE, peer)
    assert old.name == "alice"
    assert setting.gate.book.file.keys.keys() == {"k9"}


def test_what_was_used_outlives_the_file(setting):
    caller = setting.gate.identify(b"Bearer k2.b", Peer())
    caller.admit(Action.INFERENCE, "open")
    caller.begin()
    setting.gate.adopt(setting.book())
    again = setting.gate.identify(b"Bearer k2.b", Peer())
    with pytest.raises(TooManyRequests):
        again.admit(Action.INFERENCE, "open")
    with pytest.raises(TooManyRequests):
        again.begin()
    caller.end()
    again.begin()
    assert setting.gate.admitted()["bob"] == 1


def test_a_rule_by_repository_asks_where_the_model_lies():
    setting = Setting(RULES + '[[rule]]\nfor = ["alice"]\nallow = ["trace"]\nnamespaces = ["/a"]\n')
    setting.namespaces["m"] = "/a"
    caller = setting.gate.identify(ALICE, Peer())
    caller.require(Action.TRACE, "m")
    assert caller.may(Action.TRACE, "m")
    assert not caller.may(Action.TRACE, "m", "/b")
    setting.namespaces["m"] = "/b"
    assert not caller.may(Action.TRACE, "m")
    with pytest.raises(PermissionDenied):
        caller.require(Action.TRACE, "m")


def test_a_load_is_judged_once_more_when_its_repository_is_known():
    rule = '[[rule]]\nfor = ["alice"]\nallow = ["model-repository", "trace"]\nnamespaces = ["/a"]\n'
    caller = Setting(RULES + rule).gate.identify(ALICE, Peer())
    caller.require(Action.MODEL_REPOSITORY, "unloaded")
    caller.require(Action.MODEL_REPOSITORY, "unloaded", "/a")
    for repository in ("/b", ""):
        with pytest.raises(PermissionDenied):
            caller.require(Action.MODEL_REPOSITORY, "unloaded", repository)
    assert not caller.may(Action.TRACE, "unloaded")
    assert not caller.may_all(Action.TRACE)


def test_a_refusal_keeps_nothing_of_the_request_it_refused(setting):
    class Message:
        """What would be kept: an inference of half a gigabyte."""

    def refuse():
        message = Message()
        with pytest.raises(PermissionDenied):
            caller.admit(Action.INFERENCE, "closed", size=9)
        return weakref.ref(message)

    caller = setting.gate.identify(ALICE, Peer())
    gc.collect()
    gc.disable()
    try:
        assert refuse()() is None
    finally:
        gc.enable()


def test_a_confined_model_is_an_identity_of_its_own():
    setting = Setting(RULES + '[[rule]]\nfor = ["model:chain"]\nallow = ["inference"]\nmodels = ["part"]\n')
    caller = setting.gate.named("model:chain")
    assert caller.may(Action.INFERENCE, "part")
    assert not caller.may(Action.INFERENCE, "open1")


def test_refusals_that_are_counted_by_name_are_bounded(setting):
    for number in range(MOST_VERDICTS + 5):
        setting.gate.refused(f"jwt:{number}", PermissionDenied("no"))
    assert len(setting.gate.refusals) == MOST_VERDICTS + 1
    assert setting.gate.refusals["other", "permission_denied"] == 5


def test_two_authorizations_are_none():
    assert presented([(b"host", b"x")]) == b""
    assert presented([(b"authorization", b"a")]) == b"a"
    with pytest.raises(Unauthenticated, match="more than one Authorization"):
        presented([(b"authorization", b"a"), (b"authorization", b"a")])


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("ipv4:127.0.0.1:1234", "127.0.0.1"),
        ("ipv6:[::1]:1234", "::1"),
        ("unix:", ""),
        ("", ""),
    ],
)
def test_a_peer_is_at_an_address(text, address):
    assert Peer.at(text).address == address
