"""Series that models define: which models share them, how long they are shown, what a worker may not do."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from actors.values.errors import AlreadyExists, InvalidArgument, TritiumError, Unavailable, Unsupported
from actors.wire.frames import FrameError
from engine.observability.custom_metrics import MAX_FAMILIES, MAX_SERIES, CustomMetrics


@pytest.fixture
def metrics():
    return CustomMetrics()


def family(hold, name="requests", kind="counter", description="What was asked"):
    hold.family({"name": name, "description": description, "kind": kind})


def series(hold, name="requests", buckets=(), **labels):
    return hold.series({"family": name, "labels": labels, "buckets": list(buckets)})["series"]


def change(hold, number, *, put=None, added=0.0, counts=()):
    hold.change({"changes": [[number, put, added, list(counts)]]})


@pytest.fixture
def counting(metrics):
    """What a worker holds that has made the family `requests`."""
    hold = metrics.open()
    family(hold)
    return hold


@pytest.fixture
def sizes(metrics):
    """What a worker holds that has made the histogram `sizes`."""
    hold = metrics.open()
    family(hold, "sizes", "histogram")
    return hold


@pytest.fixture
def both(metrics):
    """What two workers hold that have made the family `requests`."""
    holds = metrics.open(), metrics.open()
    for hold in holds:
        family(hold)
    return holds


def shown(metrics):
    """Return every sample by name and labels, read by Prometheus's own parser."""
    return {
        (sample.name.removesuffix("_total"), tuple(sorted(sample.labels.items()))): sample.value
        for each in text_string_to_metric_families("".join(metrics.blocks()))
        for sample in each.samples
    }


def test_workers_that_use_the_same_labels_share_a_series(metrics, both):
    for hold in both:
        change(hold, series(hold, tenant="a"), added=2)
    assert shown(metrics) == {("requests", (("tenant", "a"),)): 4}
    assert both[0].value({"series": series(both[0], tenant="a")}) == {"value": 4}


def test_a_whole_number_is_written_as_triton_writes_it(metrics, counting):
    change(counting, series(counting, b="2", a="1"), added=5.0)
    assert "".join(metrics.blocks()) == (
        '# HELP requests What was asked\n# TYPE requests counter\nrequests{a="1",b="2"} 5\n'
    )


def test_a_series_is_shown_until_its_last_reference_is_gone(metrics, both):
    first, second = both
    number = series(first)
    assert series(first) == series(second) == number
    first.release({"series": [number]})
    first.release({"series": [number]})
    assert shown(metrics)
    second.release({"series": [number]})
    assert not shown(metrics)


def test_what_a_worker_held_goes_with_it(metrics, both):
    first, second = both
    series(first, only="here")
    change(second, series(second), added=1)
    series(first)
    first.close()
    assert list(shown(metrics).values()) == [1]
    second.close()
    assert not shown(metrics)


def test_a_worker_that_has_ended_can_hold_nothing_more(counting):
    counting.close()
    with pytest.raises(Unavailable):
        series(counting)


def test_a_series_that_is_made_again_begins_at_zero(counting):
    number = series(counting)
    change(counting, number, added=3)
    counting.release({"series": [number]})
    assert counting.value({"series": series(counting)}) == {"value": 0}


def test_a_gauge_is_put_and_then_added_to(metrics):
    hold = metrics.open()
    family(hold, kind="gauge")
    number = series(hold)
    change(hold, number, added=1.5)
    change(hold, number, put=10.0, added=-4.0)
    assert hold.value({"series": number}) == {"value": 6}


def test_a_histogram_counts_what_lies_below_each_bound(metrics, sizes):
    number = series(sizes, "sizes", buckets=[0.5, 10.0])
    change(sizes, number, added=23.25, counts=[1, 2, 1])
    assert list("".join(metrics.blocks()).splitlines())[2:] == [
        'sizes_bucket{le="0.5"} 1',
        'sizes_bucket{le="10"} 3',
        'sizes_bucket{le="+Inf"} 4',
        "sizes_sum 23.25",
        "sizes_count 4",
    ]


def test_a_family_keeps_its_kind_and_its_first_description(metrics, counting):
    with pytest.raises(AlreadyExists, match="'requests' is a counter already, and can't be a gauge"):
        family(counting, kind="gauge")
    family(counting, description="Something else")
    series(counting)
    assert "# HELP requests What was asked\n" in "".join(metrics.blocks())


@pytest.mark.parametrize(
    "name", ["", "9lives", "a-b", "a b", "nv_inference_count", "tritium_x", "a\n", "x" * 2000]
)
def test_a_name_that_would_spoil_the_scrape_is_refused(metrics, name):
    with pytest.raises(InvalidArgument):
        family(metrics.open(), name)


@pytest.mark.parametrize("labels", [{"a-b": "x"}, {"__name__": "x"}, {"": "x"}, {"a": "x" * 2000}])
def test_so_is_a_label(counting, labels):
    with pytest.raises(InvalidArgument):
        series(counting, **labels)


def test_a_histograms_lines_are_nobody_elses(sizes):
    with pytest.raises(InvalidArgument, match="taken for a part"):
        family(sizes, "sizes_count")
    family(sizes, "times_sum")
    with pytest.raises(InvalidArgument, match="taken for a part"):
        family(sizes, "times", "histogram")
    with pytest.raises(InvalidArgument, match="no name for a label"):
        series(sizes, "sizes", buckets=[1.0], le="1")


@pytest.mark.parametrize("buckets", [[2.0, 1.0], [1.0, 1], [math.nan], [1.0, math.inf], [-math.inf]])
def test_buckets_that_would_be_lines_twice_or_out_of_order_are_refused(sizes, buckets):
    with pytest.raises(InvalidArgument, match="not numbers in ascending order"):
        series(sizes, "sizes", buckets=buckets)


def test_the_same_labels_with_other_buckets_are_refused(sizes):
    series(sizes, "sizes", buckets=[1.0])
    with pytest.raises(InvalidArgument, match="has buckets"):
        series(sizes, "sizes", buckets=[2.0])


def test_text_of_a_model_cannot_break_out_of_its_line(metrics):
    hold = metrics.open()
    family(hold, description='two\nlines \\ "quoted"')
    series(hold, path='a"b\\c\nd')
    ((sample, value),) = shown(metrics).items()
    assert sample[1] == (("path", 'a"b\\c\nd'),)
    assert value == 0


def test_one_worker_can_hold_only_so_many(metrics):
    hold, other = metrics.open(), metrics.open()
    family(hold)
    for number in range(MAX_SERIES):
        series(hold, id=str(number))
    with pytest.raises(Unavailable, match="fewer different labels"):
        series(hold, id="one more")
    series(other, id="one more")


def test_a_name_that_nobody_uses_gives_way_to_a_new_one(metrics):
    hold = metrics.open()
    for number in range(MAX_FAMILIES):
        family(hold, f"family_{number}")
    series(hold, "family_0")
    family(hold, "another")
    series(hold, "another")
    with pytest.raises(InvalidArgument, match="make it first"):
        series(hold, "family_1")
    assert {name for name, _ in shown(metrics)} == {"family_0", "another"}


def test_a_family_may_go_while_a_scrape_is_under_way(metrics):
    hold = metrics.open()
    family(hold, "first")
    family(hold, "second")
    held = [series(hold, name, n=str(number)) for name in ("first", "second") for number in range(600)]
    blocks = metrics.blocks()
    pieces = [next(blocks)]
    hold.release({"series": held[:900]})
    pieces += blocks
    samples = [line for line in "".join(pieces).splitlines() if not line.startswith("#")]
    assert len([line for line in samples if line.startswith("second")]) == 300


def test_without_metrics_there_are_no_families():
    with pytest.raises(Unsupported, match="allow-metrics"):
        family(CustomMetrics(enabled=False).open())


def test_special_values_are_shown(metrics):
    hold = metrics.open()
    family(hold, kind="gauge")
    change(hold, series(hold, is_="nan"), put=math.nan)
    change(hold, series(hold, is_="inf"), put=-math.inf)
    values = {labels[0][1]: value for (_, labels), value in shown(metrics).items()}
    assert math.isnan(values["nan"])
    assert values["inf"] == -math.inf


def test_a_change_of_what_was_let_go_of_is_left_out(counting):
    number = series(counting)
    counting.release({"series": [number]})
    change(counting, number, added=1)
    with pytest.raises(InvalidArgument, match="deleted"):
        counting.value({"series": number})


@pytest.mark.parametrize(
    "what",
    [
        [1, None, -1.0, []],
        [1, 1.0, 0.0, []],
        [1, None, 1.0, [1]],
        [1, None, math.nan, []],
        [1, None, "1", []],
        [1, None, True, []],
        [1, None, 10**400, []],
        [1, None, 1.0, [-1]],
        [1, None, 1.0, None],
        [1, None, 1.0],
        [[], None, 1.0, []],
        [{}, None, 1.0, []],
        [None, None, 1.0, []],
        "x",
    ],
)
def test_what_no_worker_of_ours_says_ends_the_worker(counting, what):
    assert series(counting) == 1
    with pytest.raises(FrameError):
        counting.change({"changes": [what]})
    assert counting.value({"series": 1}) == {"value": 0}


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
BODIES = st.fixed_dictionaries(
    {},
    optional={
        "name": VALUES | st.just("f"),
        "description": VALUES | st.just("d"),
        "kind": VALUES | st.sampled_from(["counter", "gauge", "histogram"]),
        "family": VALUES | st.just("f"),
        "labels": VALUES | st.just({}) | st.just({"a": "b"}),
        "buckets": VALUES | st.just([]) | st.just([1.0]),
        "series": VALUES | st.just(1) | st.just([1]),
        "changes": VALUES
        | st.lists(st.tuples(st.just(1) | VALUES, VALUES, VALUES, VALUES).map(list), max_size=3),
    },
)


@given(st.lists(st.tuples(st.sampled_from(["family", "series", "value", "change", "release"]), BODIES)))
def test_whatever_a_worker_says_is_refused_or_shown(words):
    metrics = CustomMetrics()
    hold = metrics.open()
    for method, body in words:
        try:
            getattr(hold, method)(body)
        except (FrameError, TritiumError):
            continue
    shown(metrics)
    hold.close()
    assert not shown(metrics)
