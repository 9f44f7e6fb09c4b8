"""Keys that are added to an auth file's text and revoked in it: all that is not theirs stays as it was."""

import tomllib
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.identity.document import AuthFileError, read_auth_file
from engine.identity.editing import HEAD, NewKey, NotEdited, Revocation, chosen_id, with_key, with_revoked

DIGEST = "ab" * 32
NOW = datetime(2026, 11, 24, 0, 20, 43, tzinfo=UTC)
LATER = datetime(2027, 2, 22, 0, 20, 43, tzinfo=UTC)
MINE = f"""\
# Mine. Do not touch.

[[key]]  # the build machines
id = 'ci'
digest = "{DIGEST}"
groups = [
  "builders",  # of images
]

# what builders may
[[rule]]
for = ["group:builders"]
allow = ["*"]
"""


def added(text, key=None):
    return with_key(text, key or NewKey(id="new", digest=DIGEST, name="alice"), file="auth.toml")[0]


def revoked(text, id_="ci"):
    return with_revoked(text, id_, NOW, file="auth.toml").text


def without_line(text, place):
    lines = text.split("\n")
    return lines[place], "\n".join(lines[:place] + lines[place + 1 :])


# -- new keys


def test_a_new_key_is_appended_and_the_rest_stays():
    key = NewKey(id="k", digest=DIGEST, name="a@b/c", groups=["x", "y"], expires=LATER)
    text, file = with_key(MINE, key, file="auth.toml")
    assert text == MINE + (
        f'\n[[key]]\nid = "k"\ndigest = "{DIGEST}"\nname = "a@b/c"\n'
        'groups = ["x", "y"]\nexpires = 2027-02-22T00:20:43Z\n'
    )
    assert file == read_auth_file(text, "auth.toml")
    assert file.keys["k"].expires == LATER.timestamp()


def test_a_new_file_begins_with_what_it_is_for():
    text = added(HEAD)
    assert text.startswith("# Who may do what")
    assert text.count("[[key]]\n") == 1
    assert all(len(line) <= 120 for line in text.splitlines())


@pytest.mark.parametrize(("text", "gap"), [("", ""), ("# a\n\n", ""), ("# a\n", "\n"), ("# a", "\n\n")])
def test_a_table_stands_apart_from_what_is_before_it(text, gap):
    assert added(text).startswith(text + gap + "[[key]]\n")


def test_the_ends_of_lines_stay_those_of_the_file():
    windows = MINE.replace("\n", "\r\n")
    assert "\n" not in added(windows).replace("\r\n", "")
    assert "\n" not in revoked(windows).replace("\r\n", "")
    assert read_auth_file(revoked(windows), "auth.toml").keys["ci"].revoked


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"name": "a b"}, "'a b' is no name"),
        ({"name": ""}, "'' is no name"),
        ({"groups": ['"']}, "is no group"),
    ],
)
def test_names_that_nothing_could_print_are_refused(changes, told):
    with pytest.raises(NotEdited, match=told):
        added("", NewKey(**{"id": "k", "digest": DIGEST, "name": "n", **changes}))


def test_names_with_a_meaning_of_their_own_are_refused():
    with pytest.raises(NotEdited, match="'anonymous' has a meaning of its own"):
        added("", NewKey(id="k", digest=DIGEST, name="anonymous"))


@pytest.mark.parametrize(
    "text",
    [
        f'key = [{{id = "ci", digest = "{DIGEST}"}}]\n',
        f'[["key"]]\nid = "ci"\ndigest = "{DIGEST}"\n',
    ],
)
def test_keys_in_another_form_are_not_edited(text):
    assert "ci" in read_auth_file(text, "auth.toml").keys
    with pytest.raises(NotEdited, match=r"auth\.toml: .* a line \[\[key\]\]"):
        revoked(text)


def test_no_table_is_added_to_an_inline_array():
    with pytest.raises(NotEdited, match="Nothing was changed"):
        added(f'key = [{{id = "ci", digest = "{DIGEST}"}}]\n')


@pytest.mark.parametrize("edit", [added, revoked])
@pytest.mark.parametrize(
    ("text", "told"),
    [
        (MINE + "x = ", "not TOML"),
        (MINE + 'x = """\n', "not TOML"),
        (MINE.replace("allow", "alow"), r"auth\.toml, line 11: \[\[rule\]\] number 1"),
    ],
)
def test_a_file_that_was_wrong_before_is_told_so(edit, text, told):
    with pytest.raises(AuthFileError, match=told):
        edit(text)


def test_a_table_that_does_not_say_what_it_should_is_not_written():
    with pytest.raises(NotEdited, match="Nothing was changed"):
        added("", NewKey(id="k", digest=DIGEST, name="n", expires=LATER.replace(microsecond=5)))


# -- ids


@pytest.mark.parametrize(
    ("name", "id_"),
    [("alice", "alice"), ("ci", "ci-2"), ("a@b/c.d", "a-b-c-d"), ("n" * 128, "n" * 50), ("@", "key")],
)
def test_an_id_is_made_of_the_name(name, id_):
    assert chosen_id(MINE, "", name) == id_


def test_an_id_of_ones_own_must_be_free_and_an_id():
    assert chosen_id(MINE, "k_1-x", "alice") == "k_1-x"
    with pytest.raises(NotEdited, match="there is a key 'ci' already"):
        chosen_id(MINE, "ci", "alice")
    for bad in ("a.b", "a b", "-a", "x" * 65):
        with pytest.raises(NotEdited, match="is no id"):
            chosen_id(MINE, bad, "alice")


def test_an_id_that_only_looks_free_is_refused():
    hidden = f'[[key]]\n"id" = "alice"\ndigest = "{DIGEST}"\n'
    id_ = chosen_id(hidden, "", "alice")
    with pytest.raises(NotEdited, match="'alice' is there already"):
        added(hidden, NewKey(id=id_, digest=DIGEST, name="alice"))


# -- revoked keys


def test_a_key_is_revoked_beside_its_id_and_the_rest_stays():
    line, rest = without_line(revoked(MINE), 4)
    assert (line, rest) == ("revoked = 2026-11-24T00:20:43Z", MINE)


def test_a_word_about_revocation_is_replaced():
    text = MINE.replace("groups", "revoked = false  # so far\ngroups")
    assert revoked(text) == text.replace("= false ", "= 2026-11-24T00:20:43Z ")


@pytest.mark.parametrize("word", ["true", "2020-01-01", "2020-01-01T00:00:00Z"])
def test_a_key_that_was_revoked_before_stays_as_it_is(word):
    text = MINE.replace("groups", f"revoked = {word}\ngroups")
    found = with_revoked(text, "ci", NOW, file="auth.toml")
    assert found == Revocation(text, tomllib.loads(text)["key"][0]["revoked"])


def test_a_key_that_is_not_there_has_a_neighbour():
    with pytest.raises(NotEdited, match=r"no key with the id 'cii' \(did you mean 'ci'"):
        revoked(MINE, "cii")
    with pytest.raises(NotEdited, match=r"`tritium key list --auth-file auth\.toml`"):
        revoked("", "zzz")


HIDDEN = f"""\
[[certificate]]
name = "edge"
subject = '''
[[key]]
id = "ci"
digest = "{DIGEST}"
[x]
'''
"""


@pytest.mark.parametrize(
    "table",
    [
        HIDDEN,
        # What looks like a line of the table is in a text.
        f'[[key]]\nname = """\nid = "ci"\n"""\nid = "other"\ndigest = "{DIGEST}"\n',
        f'[[key]]\nname = """\nid = "ci"\n"""\nid = "other"\ndigest = "{DIGEST}"\nrevoked = true\n',
        f'[[key]]\nid = "ci"\nname = """\n[x]\n"""\ndigest = "{DIGEST}"\n',
        f'[[key]]\nid = "ci"\ndigest = "{DIGEST}"\n"revoked" = false\n',
        f'[[key]]\nid = "ci" \ndigest = "{DIGEST}"\nname = """\nrevoked = false"""\n',
    ],
)
def test_what_lines_do_not_show_is_not_edited(table):
    with pytest.raises((NotEdited, AuthFileError)):
        revoked(table)


IDS = st.lists(st.from_regex(r"[a-z0-9][a-z0-9_-]{0,9}", fullmatch=True), unique=True, min_size=1, max_size=6)
NOISE = st.sampled_from(["", "\n", "# [[key]]\n", '  # id = "x"\n', "\t\n"])


@st.composite
def files(draw):
    """Return the text of an auth file in some form, and the ids of its keys."""
    ids = draw(IDS)
    text = draw(NOISE)
    for id_ in ids:
        mark = draw(st.sampled_from("\"'"))
        space = draw(st.sampled_from(["", " ", "  "]))
        lines = [
            f"id{space}={space}{mark}{id_}{mark}{draw(st.sampled_from(['', ' # one']))}\n",
            f"digest = '{DIGEST}'\n",
        ]
        lines += draw(
            st.lists(
                st.sampled_from(
                    [
                        'groups = ["a",\n  # many\n  "b"]\n',
                        "expires = 2030-01-01\n",
                        "revoked = false\n",
                        "name = 'n'\n",
                    ]
                ),
                unique=True,
            )
        )
        header = draw(st.sampled_from(["[[key]]\n", "[[ key ]]  # [x]\n", "  [[key]]\n"]))
        text += header + "".join(draw(NOISE) + line for line in draw(st.permutations(lines))) + draw(NOISE)
        if draw(st.booleans()):
            text += '[[rule]]\nfor = ["*"]\nallow = ["health"]\n' + draw(NOISE)
    if draw(st.booleans()):
        text = text.rstrip("\n")
    return text.replace("\n", "\r\n") if draw(st.booleans()) else text, ids


@given(files(), st.data())
def test_edits_change_one_table_and_keep_every_other_line(file, data):
    text, ids = file
    before = tomllib.loads(text)
    key = NewKey(id="brand-new-key", digest=DIGEST, name="alice", groups=("g",), expires=LATER)
    after = tomllib.loads(added(text, key))
    assert added(text, key).startswith(text)
    assert after == {**before, "key": [*before["key"], key.content]}

    id_ = data.draw(st.sampled_from(ids))
    edited = revoked(text, id_)
    for table in before["key"]:
        if table["id"] == id_:
            table["revoked"] = NOW
    assert tomllib.loads(edited) == before
    changed = [line for line in edited.split("\n") if line not in text.split("\n")]
    assert len(changed) == 1
    assert len(edited.split("\n")) - len(text.split("\n")) in (0, 1)
