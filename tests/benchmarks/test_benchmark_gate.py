"""The auth file with which the gate's cost is measured: a client's request looks at all of its rules."""

from actors.values.callers import Action, Peer
from benchmarks.gate import KEYS, RULES, write_auth_file
from engine.identity.gate import Gate, KnownCaller
from engine.identity.loading import load_book


def test_one_key_may_infer_and_another_is_denied_by_the_last_rule(tmp_path):
    path = tmp_path / "auth.toml"
    keys = write_auth_file(path)
    book, _ = load_book(str(path))
    assert len(book.file.keys) == KEYS
    assert len(book.file.rules) == RULES
    gate = Gate(book, now=lambda: 0.0, wall_clock=lambda: 0.0)

    def decided(key):
        caller = gate.identify(f"Bearer {key}".encode(), Peer())
        assert isinstance(caller, KnownCaller)
        return caller.decide(Action.INFERENCE, "onnx_add_sub")

    good, denied = decided(keys.good), decided(keys.denied)
    assert good.allowed
    assert not denied.allowed
    assert (good.rule, denied.rule) == (book.file.rules[-2], book.file.rules[-1])
