"""What changes from one auth file to the next: names and words, no secrets and no digests."""

from engine.identity.changes import MOST, changes
from engine.identity.document import read_auth_file
from engine.identity.keys import digest_of

A, B = digest_of("a"), digest_of("b")
KEY = '[[key]]\nid = "{id}"\nname = "ci"\ndigest = "{digest}"\n'
RULE = '[[rule]]\nfor = ["{who}"]\nallow = ["inference"]\n'
LIMIT = '[[limit]]\nfor = ["ci"]\nrequests_per_second = {rate}\n'
CERTIFICATE = '[[certificate]]\nsubject = "{name}"\nname = "bot"\n'
ISSUER = (
    '[[issuer]]\nissuer = "https://id"\naudience = "{audience}"\njwks = "k.json"\nalgorithms = ["EdDSA"]\n'
)


def key(id_="k1", digest=A, more=""):
    return KEY.format(id=id_, digest=digest) + more


def between(before, after):
    return changes(read_auth_file(before, "auth.toml"), read_auth_file(after, "auth.toml"))


def test_keys_that_come_go_change_and_are_revoked_are_told_by_id_and_name():
    before = key("k1") + key("k2") + key("k3") + key("k4")
    after = key("k2", B) + key("k3", more="revoked = true\n") + key("k4") + key("k5")
    told = between(before, after)
    assert told == {
        "keys_revoked": ["k3 (ci)"],
        "keys_added": ["k5 (ci)"],
        "keys_removed": ["k1 (ci)"],
        "keys_changed": ["k2 (ci)"],
    }
    assert A not in str(told)
    assert B not in str(told)


def test_rules_and_limits_are_told_in_words_wherever_they_stand():
    before = key() + RULE.format(who="ci") + LIMIT.format(rate=5)
    after = key() + RULE.format(who="*") + "\n\n" + RULE.format(who="ci") + LIMIT.format(rate=6)
    assert between(before, after) == {
        "rules_added": ["allows inference on every model to all clients"],
        "limits_added": ["ci: 6 requests a second, in bursts of up to 1 s"],
        "limits_removed": ["ci: 5 requests a second, in bursts of up to 1 s"],
    }


def test_another_order_of_the_same_rules_is_told_since_the_first_that_matches_decides():
    one, other = RULE.format(who="ci"), RULE.format(who="*")
    assert between(key() + one + other, key() + other + one) == {
        "rules_reordered": ["their order, or how often each is there"]
    }


def test_certificates_and_issuers_are_told_by_name_and_a_move_in_the_file_is_no_change():
    before = CERTIFICATE.format(name="spiffe://a") + ISSUER.format(audience="x")
    assert between(before, "\n" + ISSUER.format(audience="x") + CERTIFICATE.format(name="spiffe://a")) == {}
    after = CERTIFICATE.format(name="spiffe://b") + ISSUER.format(audience="y")
    assert between(before, after) == {
        "certificates_added": ["spiffe://b (bot)"],
        "certificates_removed": ["spiffe://a (bot)"],
        "issuers_changed": ["https://id"],
    }


def test_of_many_changes_the_first_are_told_and_the_number_of_the_rest():
    told = between("", "".join(key(f"k{number}") for number in range(MOST + 3)))
    assert len(told["keys_added"]) == MOST + 1
    assert told["keys_added"][-1] == "and 3 more"
