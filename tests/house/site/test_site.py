"""The site is whole: each page is in its navigation, each link leads somewhere, each page has an owner.

`mkdocs build --strict`, which CI runs too, wants more than a test may: packages that only `dev` has.
"""

import csv
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from tests.house.graph import ROOT
from tests.house.site import nav
from tests.house.site.links import anchors, documents, for_the_site, links, page_of, slug

DOCUMENTS = documents()
TEXTS = {document: (ROOT / document).read_text(encoding="utf-8") for document in DOCUMENTS}
OWNERS = Path(__file__).with_name("owners.csv")

UNSEEN = {
    "engine.core": "which core runs; CONTRIBUTING.md tells of it",
    "protocols.http2": "the wire of gRPC, with no setting of its own",
    "actors.catalog": "what storage.md, of `engine.repository`, makes happen",
    "actors.seams": "ports between rooms",
    "actors.wire": "what server and worker say to each other",
}
"""Rooms without behaviour of their own that a user sees, and why."""


def owners() -> dict[str, list[str]]:
    """Return the rooms of each page, or of the pages that a pattern fits."""
    with OWNERS.open(newline="") as file:
        return {row["page"]: row["rooms"].split() for row in csv.DictReader(file)}


def test_each_page_is_in_the_navigation_once():
    listed = Counter(nav.named(nav.filled(nav.written(), list(DOCUMENTS.values()))))
    assert set(listed) == set(DOCUMENTS.values())
    assert {page for page, times in listed.items() if times > 1} == set()


def test_each_pattern_of_the_navigation_is_for_pages_that_are_named_nowhere():
    written = [{"Start": ["index.md", "tutorials/*"]}, {"More": ["tutorials/last.md", {"None": ["none/*"]}]}]
    pages = ["index.md", "tutorials/first.md", "tutorials/last.md"]
    assert nav.filled(written, pages) == [
        {"Start": ["index.md", "tutorials/first.md"]},
        {"More": ["tutorials/last.md"]},
    ]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_each_link_leads_to_a_file_and_to_an_anchor_that_there_is(document):
    broken = []
    for link in links(document, TEXTS[document]):
        path = ROOT / link.path
        if not link.path:
            continue
        if not path.exists():
            broken.append(f"{link.target}: there is no {link.path}")
        elif link.image and not link.path.startswith("docs/"):
            broken.append(f"{link.target}: an image has to lie in docs")
        elif link.anchor and path.suffix == ".md":
            there = anchors(TEXTS.get(link.path) or path.read_text(encoding="utf-8"))
            if link.anchor not in there:
                broken.append(f"{link.target}: {link.path} has {', '.join(sorted(there))}")
    assert broken == []


@pytest.mark.parametrize("page", DOCUMENTS.values())
def test_each_page_has_an_owner(page):
    owned = [rooms for pattern, rooms in owners().items() if fnmatchcase(page, pattern)]
    assert owned, f"{OWNERS.name} needs a line for {page}: the rooms that it tells of"
    assert all(owned)


def test_each_owner_is_there_and_owns_a_page():
    pages = DOCUMENTS.values()
    without = [p for p in owners() if "*" not in p and p not in pages]
    missing = {
        room
        for rooms in owners().values()
        for room in rooms
        if not any((ROOT / (room.replace(".", "/") + suffix)).exists() for suffix in ("", ".py"))
    }
    assert (without, missing) == ([], set())


def test_each_room_that_a_user_sees_owns_a_page():
    """A page of a room below it is one, too."""
    owning = {room for rooms in owners().values() for room in rooms}
    rooms = {
        f"{package}.{path.parent.name}"
        for package in ("engine", "protocols", "actors")
        for path in (ROOT / package).glob("*/__init__.py")
    }
    without = {room for room in rooms if not any(f"{each}.".startswith(f"{room}.") for each in owning)}
    assert without == set(UNSEEN)


# -- what a document is on the site


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("Kill something", "kill-something"),
        ("GPUs, shared – or not?", "gpus-shared--or-not"),
        ("`tritium.worker` and NUMA", "tritiumworker-and-numa"),
    ],
)
def test_a_heading_has_the_anchor_that_forges_give_it(heading, anchor):
    assert slug(heading) == anchor
    assert anchors(f"# {heading}\n") == {anchor}


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("[Logs](docs/logs.md#rates)", "[Logs](logs.md#rates)"),
        ("[below](#rates)", "[below](#rates)"),
        ("[examples](examples/)", "[examples](examples/index.md)"),
        ("[trio](https://trio.readthedocs.io)", "[trio](https://trio.readthedocs.io)"),
        ("![tree](docs/tree.svg)", "![tree](tree.svg)"),
        ('<img src="docs/tree.svg" width="80">', '<img src="tree.svg" width="80">'),
        ('<a href="docs/logs.md#rates">Logs</a>', '<a href="logs.html#rates">Logs</a>'),
        ("[a function](examples/softmax.py)", "a function (`examples/softmax.py`)"),
        ("[`examples/softmax.py`](examples/softmax.py)", "`examples/softmax.py`"),
        ("`[x](docs/logs.md)`", "`[x](docs/logs.md)`"),
        ("```\n[x](docs/logs.md)\n```", "```\n[x](docs/logs.md)\n```"),
    ],
)
def test_a_link_of_a_document_fits_its_page(written, shown):
    assert for_the_site("README.md", written) == shown


def test_a_link_out_of_docs_fits_its_page():
    assert for_the_site("docs/backends/fil.md", "[x](../../README.md) [y](../logs.md)") == (
        "[x](../readme.md) [y](../logs.md)"
    )


def test_notes_of_changes_are_no_pages():
    assert page_of("docs/changes/calls.feature.md") is None
    assert for_the_site("docs/logs.md", "[x](changes/calls.feature.md)") == (
        "x (`docs/changes/calls.feature.md`)"
    )
