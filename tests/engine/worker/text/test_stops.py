"""Stop texts, found as text comes."""

from hypothesis import given
from hypothesis import strategies as st

from engine.worker.text.stops import Stops, StopSearch

letters = st.text("ab\n", min_size=1, max_size=5)


def first_end(text, stops):
    """Return the text up to the first end of a stop text, and the longest that ends there."""
    for end in range(len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, ""


@given(st.lists(letters, max_size=4), st.lists(st.text("ab\n", max_size=4), max_size=12), st.booleans())
def test_the_first_stop_text_ends_the_text_however_it_is_cut(stops, parts, include):
    search = StopSearch(Stops(stops), include=include)
    told = ""
    for part in parts:
        told += search.feed(part)
        if search.found:
            break
    else:
        told += search.end()

    before, found = first_end("".join(parts), stops)

    assert search.found == found
    assert told == (before + found if include else before)


@given(st.lists(letters, min_size=1, max_size=4), st.text("ab\nc", max_size=20))
def test_no_more_is_held_back_than_may_begin_a_stop_text(stops, text):
    search = StopSearch(Stops(stops))
    told = search.feed(text)
    if search.found:
        return

    held = text[len(told) :]

    assert held == max((text[at:] for at in range(len(text) + 1) if _begins(text[at:], stops)), key=len)


def _begins(text, stops):
    return not text or any(stop.startswith(text) for stop in stops)


def test_an_empty_stop_text_counts_for_nothing():
    search = StopSearch(Stops(["", "x"]))

    assert search.feed("abc") == "abc"
    assert search.feed("x") == ""
    assert search.found == "x"


def test_a_stop_text_of_many_characters_takes_one_step_for_each():
    size = 50_000
    search = StopSearch(Stops(["a" * size + "b"]))

    told = "".join(search.feed("a") for _ in range(2 * size)) + search.end()

    assert told == "a" * 2 * size
