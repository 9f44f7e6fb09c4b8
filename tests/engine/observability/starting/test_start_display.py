"""What a terminal shows while a server's models load, and when they have."""

import io
from dataclasses import replace

import pytest
import structlog
import trio
from hypothesis import given
from hypothesis import strategies as st

from actors.values.datatypes import DataType
from actors.values.events import Event
from actors.values.interfaces import IndexEntry
from actors.values.specs import InputSpec, ModelKey, OldestStrategy, SequenceBatching
from engine.observability.loads import load_text
from engine.observability.logs import LogSink, configure_logging
from engine.observability.starting.drawing import columns, fitting, padded, painted, redrawn, wrapped
from engine.observability.starting.hints import Address, example, hints
from engine.observability.starting.progress import Canvas, block
from engine.observability.starting.showing import StartDisplay
from engine.observability.starting.summary import Loaded, failures, summary
from engine.observability.terminals import Ability
from engine.settings.reporting import LogSettings
from tests.support.model_doubles import make_spec

FINE = Ability(draws=True, colours=True, wide=True)
PLAIN = Ability(draws=True, colours=False, wide=False)
WHY = """\
Internal: RuntimeError: the weights are not where they should be: /nowhere/weights.bin

At:
  model.py(3): initialize
"""
LAZY = {ModelKey("lazy", "")}


def entry(name, state="", reason="", version=1, **progress):
    return IndexEntry(name=name, version=version, state=state, reason=reason, progress=progress or None)


ENTRIES = [
    entry("add_sub", "READY"),
    entry("bert", version=0, phase="downloading", seconds=4.2, bytes=440 << 20, bytes_done=12 << 20),
    entry("broken", "UNAVAILABLE", WHY),
    entry("lazy", "UNAVAILABLE", "unloaded"),
    entry("slow", "LOADING", phase="building its environment", step="Collecting numpy", seconds=8.0),
    entry("next", version=0, phase="waiting", seconds=1.0, attempt=2),
]


def canvas(width=80, height=24, ability=FINE):
    return Canvas(width=width, height=height, ability=ability)


def plain(lines):
    return ["".join(words for words, _ in line).rstrip() for line in lines]


LOADING = """

Loading: 1 of 6 ready, 2 loading, 1 failed, 1 waiting, 1 on demand         9.0s
  slow/1                    building its environment: Collecting numpy     8.0s
  bert                      downloading 12.0 of 440.0 MiB                  4.2s
  broken/1                  Internal: RuntimeError: the weights are not where …
"""


def test_loads_are_shown_with_their_phases_and_seconds():
    lines = block(ENTRIES, LAZY, canvas(), seconds=9.0)
    assert plain(lines) == LOADING[1:].splitlines()


def test_what_does_not_fit_is_counted():
    lines = plain(block(ENTRIES, LAZY, canvas(height=6), seconds=9.0))
    assert lines[2].startswith("  slow/1")
    assert lines[4:] == ["  and 1 more"]


@given(
    st.lists(
        st.builds(
            lambda name, reason, phase: entry(name, "UNAVAILABLE", reason, phase=phase),
            st.text(min_size=1, max_size=60),
            st.text(max_size=200),
            st.text(min_size=1, max_size=90),
        )
        | st.builds(lambda name, why: entry(name, "UNAVAILABLE", why), st.text(), st.text()),
        max_size=30,
    ),
    st.integers(30, 140),
    st.integers(5, 50),
    st.booleans(),
)
def test_the_lines_fit_the_terminal(entries, width, height, wide):
    on = canvas(width, height, replace(FINE, wide=wide))
    lines = plain(block(entries, (), on, seconds=1e5))
    assert len(lines) < height
    assert all(columns(line) <= width and line.isprintable() for line in lines)
    assert wide or all(line.isascii() for line in lines)


@pytest.mark.parametrize(
    ("progress", "words"),
    [
        ({"phase": "starting"}, "starting worker"),
        ({"phase": "waiting", "attempt": 2}, "waiting for its turn (attempt 2)"),
        ({"phase": "warming up", "attempt": 1}, "warming up"),
        ({"phase": "reading weights"}, "reading weights"),
        ({}, "loading"),
    ],
)
def test_phases_are_told_in_words(progress, words):
    assert load_text(progress) == words


SUMMARY = """

  MODEL      STATE        LOADED IN
  add_sub/1  READY             0.6s
  lazy/1     ON DEMAND
  broken/1   UNAVAILABLE
    Internal: RuntimeError: the weights are not where they should be:
    /nowhere/weights.bin
    At:
      model.py(3): initialize
  1 more model is in the repositories, not loaded

  core python, http 0.0.0.0:8000

1 of 3 models are ready, 1 on demand, after 7.6s. Try:
  infer   curl http://127.0.0.1:8000/v2/models/add_sub
  health  curl http://127.0.0.1:8000/v2/health/ready -i

"""


def loaded(*entries, **changes):
    given = {
        "entries": entries,
        "on_demand": LAZY,
        "seconds": {("add_sub", 1): 0.6},
        "options": [("core", "python"), ("http", "0.0.0.0:8000")],
        "hints": [
            ("infer", "curl http://127.0.0.1:8000/v2/models/add_sub"),
            ("health", "curl http://127.0.0.1:8000/v2/health/ready -i"),
        ],
        "took": 7.6,
    }
    return Loaded(**{**given, **changes})


def test_the_summary_tells_models_options_and_what_to_try():
    told = loaded(ENTRIES[0], ENTRIES[2], ENTRIES[3], entry("other", version=0))
    assert plain(summary(told, canvas())) == SUMMARY[1:].splitlines()


def test_why_a_model_failed_is_told_once():
    text = "\n".join(plain(summary(loaded(*ENTRIES[:4]), canvas(width=200))))
    assert text.count("the weights are not where they should be") == 1


def test_many_models_are_counted_and_failures_stay():
    many = [entry(f"m{number}", "READY") for number in range(100)]
    lines = plain(summary(loaded(*many, ENTRIES[2]), canvas()))
    assert "  61 more are ready or on demand" in lines
    assert any(line.startswith("  broken/1") for line in lines)
    assert len(lines) < 60


def test_a_start_that_ends_early_tells_of_failures():
    lines = plain(failures(ENTRIES, LAZY, canvas()))
    assert lines[0] == "broken/1  UNAVAILABLE"
    assert len(lines) == 5


class TestHints:
    """What there is to try."""

    def test_a_request_has_what_the_model_declares(self):
        text = InputSpec(name="TEXT", datatype=DataType.BYTES, dims=(-1,))
        spec = make_spec(inputs=(*make_spec().inputs, text))
        assert example(spec) == {
            "inputs": [
                {"name": "INPUT", "datatype": "FP32", "shape": [1, 2], "data": [0, 0]},
                {"name": "TEXT", "datatype": "BYTES", "shape": [1, 1], "data": ["text"]},
            ]
        }

    @pytest.mark.parametrize(
        "changes",
        [
            {"decoupled": True},
            {"scheduling": SequenceBatching(strategy=OldestStrategy())},
            {"inputs": ()},
            {"inputs": (InputSpec(name="X", datatype=DataType.FP16, dims=(1,)),)},
            {"inputs": (InputSpec(name="X", datatype=DataType.FP32, dims=(3, 224, 224)),)},
        ],
    )
    def test_a_model_that_asks_for_more_gets_no_example(self, changes):
        spec = make_spec(**changes)
        assert example(spec) is None
        http = Address(host="0.0.0.0", port=8000)
        assert dict(hints([spec], http=http, grpc=None, metrics=None))["infer"] == (
            "curl http://127.0.0.1:8000/v2/models/model"
        )

    def test_addresses_are_those_of_the_listeners(self):
        http = Address(host="::1", port=8000, tls=True, key=True)
        told = dict(hints([make_spec()], http=http, grpc=Address(host="", port=1), metrics=http))
        assert told["health"] == (
            'curl -H "Authorization: Bearer $TRITIUM_API_KEY" https://[::1]:8000/v2/health/ready -i'
        )
        assert told["infer"].endswith(
            "/v2/models/model/infer -d "
            """'{"inputs":[{"name":"INPUT","datatype":"FP32","shape":[1,2],"data":[0,0]}]}'"""
        )
        assert told["gRPC"] == "127.0.0.1:1"

    def test_under_another_server_its_address_is_not_known(self):
        assert "health" not in dict(hints([], http=None, grpc=None, metrics=None, elsewhere=True))
        assert "HTTP" in dict(hints([], http=None, grpc=None, metrics=None, elsewhere=True))


class TestDrawing:
    """Lines, and what puts them on a terminal."""

    @given(st.text(max_size=60), st.integers(1, 40))
    def test_text_is_cut_and_filled_to_columns(self, text, width):
        assert columns(fitting(text, width, "…")) <= width
        assert columns(padded(text, width, "…")) == width
        if not any(character.isspace() for character in text):
            assert "".join(wrapped(text, width)) == text

    def test_wide_characters_take_two_columns(self):
        assert (columns("日本"), columns("e\u0301")) == (4, 1)
        assert fitting("日本語", 5, "…") == "日本…"

    def test_styles_are_escapes_where_there_are_colours(self):
        assert painted([("a", "red"), ("b", "")], FINE) == "\x1b[31ma\x1b[0mb"
        assert painted([("a", "red")], PLAIN) == "a"

    def test_what_is_below_is_erased_and_drawn_again(self):
        assert redrawn("line\n", ["", "a"]) == "\r\x1b[Jline\n\na\x1b[1A\r"
        assert redrawn("line\n", []) == "\r\x1b[Jline\n"


class TestOnATerminal:
    """The display with a log around it."""

    @pytest.fixture(autouse=True)
    def _structlog(self):
        yield
        structlog.reset_defaults()

    async def shown(self, steps, *, sums_up=True, **settings):
        """What a terminal was sent while `known` gave each of `steps` for a while."""
        out = io.StringIO()
        with LogSink(out, out) as sink:
            configure_logging(LogSettings(**settings), sink, environ={})
            display = StartDisplay(sink, PLAIN)
            log = structlog.get_logger()
            now = {"known": (steps[0], LAZY)}
            async with trio.open_nursery() as nursery:
                loading = lambda: any(each.progress is not None for each in now["known"][0])  # noqa: E731
                nursery.start_soon(display.run, lambda: now["known"], loading)
                for step in steps:
                    now["known"] = (step, LAZY)
                    log.info(Event.MODEL_LOADING, model="slow", version=1)
                    log.error(Event.MODEL_UNAVAILABLE, model="broken", reason="the weights")
                    log.info(Event.MODEL_LOADING, model="slow", version=1, warning="a doubt")
                    await trio.sleep(2)
                    await trio.to_thread.run_sync(lambda: None)
                if sums_up:
                    display.sum_up(loaded(*ENTRIES))
                    display.end_start()
                    now["known"] = (ENTRIES[:1], LAZY)
                    log.info(Event.MODEL_READY, model="later")
                    await trio.sleep(2)
                    now["known"] = (ENTRIES[1:2], LAZY)
                    await trio.sleep(2)
                nursery.cancel_scope.cancel()
        return out.getvalue()

    async def test_lines_about_loads_are_left_to_it_and_others_stay(self, autojump_clock):
        text = await self.shown([ENTRIES])
        assert "loading: slow" not in text
        assert "model_unavailable" not in text
        assert "a doubt" in text
        assert "models are ready" in text
        assert "successfully loaded 'later'" in text
        assert "Loading" not in text.rpartition("\x1b[J")[2]

    async def test_with_a_verbose_log_every_line_stays(self, autojump_clock):
        text = await self.shown([ENTRIES], verbose=1)
        assert "loading: slow" in text
        assert "model_unavailable" in text

    async def test_failures_are_told_though_the_start_ends_early(self, autojump_clock):
        text = await self.shown([ENTRIES], sums_up=False)
        assert "broken/1  UNAVAILABLE" in text
        assert text.index("broken/1  UNAVAILABLE") < text.index("/nowhere/weights.bin")
