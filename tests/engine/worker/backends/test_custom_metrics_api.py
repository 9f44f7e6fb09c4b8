"""Custom metrics as a Python model makes them, over the server's own series."""

import gc
import math
import threading

import numpy as np
import pytest

from engine.observability.custom_metrics import CustomMetrics
from engine.worker.backends.base import LoadError
from engine.worker.backends.python import triton_python_backend_utils as pb_utils
from engine.worker.backends.python.host import Host, attach
from tests.support.calls_double import LocalCalls

WHERE = "Failed to process the request for model 'model_0_0', message: "


class Server:
    """The metrics of a server, and the calls that were made to it."""

    def __init__(self, **options):
        self.metrics = CustomMetrics(**options)
        self.told = []
        self.news = threading.Condition()

    def calls(self):
        """Return a new worker's connection to it."""
        hold = self.metrics.open()

        def told(method):
            def tell(body):
                with self.news:
                    method(body)
                    self.told.append(body)
                    self.news.notify_all()

            return tell

        return LocalCalls(
            subjects={
                "metric.family": hold.family,
                "metric.series": hold.series,
                "metric.value": hold.value,
                "metric.change": told(hold.change),
                "metric.release": told(hold.release),
            }
        )

    def lines(self):
        """Return what a scrape shows, without comments."""
        return [line for line in "".join(self.metrics.blocks()).splitlines() if not line.startswith("#")]

    def until(self, condition):
        """Wait for a condition that another thread brings about."""
        with self.news:
            assert self.news.wait_for(condition, 10)


@pytest.fixture
def hosts():
    """Make models; they end with the test."""
    made = []

    def make(server):
        host = Host(".", lambda level, message: None, instance_name="model_0_0", calls=server.calls())
        attach(host)
        made.append(host)
        return host

    yield make
    for host in made:
        host.close()


@pytest.fixture
def server(hosts):
    """A server, and a model of it in this thread."""
    server = Server()
    hosts(server)
    return server


COUNTER, GAUGE, HISTOGRAM = (
    pb_utils.MetricFamily.COUNTER,
    pb_utils.MetricFamily.GAUGE,
    pb_utils.MetricFamily.HISTOGRAM,
)


def family(kind=COUNTER, name="things"):
    return pb_utils.MetricFamily(name=name, description="What there is", kind=kind)


def test_a_counter_counts(server):
    things = family()
    counter = things.Metric(labels={"model": "a", "version": "1"})
    assert counter.value() == 0
    counter.increment(2)
    counter.increment(0.5)
    assert server.lines() == ['things{model="a",version="1"} 2.5']
    assert counter.value() == 2.5


def test_a_gauge_is_set_and_changed_either_way(server):
    things = family(GAUGE)
    gauge = things.Metric()
    gauge.increment(3)
    gauge.increment(-5)
    assert gauge.value() == -2
    gauge.set(10)
    gauge.increment(1)
    assert server.lines() == ["things 11"]


def test_a_histogram_observes(server):
    things = family(HISTOGRAM)
    histogram = things.Metric(buckets=[0.1, 1.0, 2.5])
    for value in (0.05, 0.1, 1.5, 9):
        histogram.observe(value)
    assert server.lines() == [
        'things_bucket{le="0.1"} 2',
        'things_bucket{le="1"} 2',
        'things_bucket{le="2.5"} 3',
        'things_bucket{le="+Inf"} 4',
        "things_sum 10.65",
        "things_count 4",
    ]


def test_a_last_bucket_without_bound_is_the_one_that_there_is_anyway(server):
    things = family(HISTOGRAM)
    histogram = things.Metric(buckets=[1.0, float("inf")])
    histogram.observe(5)
    assert server.lines()[:2] == ['things_bucket{le="1"} 0', 'things_bucket{le="+Inf"} 1']


def test_the_same_labels_are_the_same_series_until_the_last_object_is_gone(server):
    things = family()
    first, second = things.Metric({"a": "b"}), things.Metric({"a": "b"})
    first.increment(1)
    assert second.value() == 1
    del first
    gc.collect()
    server.until(lambda: any("series" in body for body in server.told))
    assert server.lines() == ['things{a="b"} 1']
    del second
    gc.collect()
    server.until(lambda: not server.lines())
    assert things.Metric({"a": "b"}).value() == 0


def test_models_share_a_series(hosts):
    server = Server()
    counters = []
    for _ in range(2):
        hosts(server)
        counters.append((things := family(), things.Metric()))
        counters[-1][1].increment(2)
    assert server.lines() == ["things 4"]
    assert [counter.value() for _, counter in counters] == [4, 4]


REFUSED = [
    (
        COUNTER,
        "increment",
        -1,
        "increment",
        "COUNTER can only be incremented monotonically by non-negative values.",
    ),
    (
        COUNTER,
        "increment",
        math.nan,
        "increment",
        "COUNTER can only be incremented monotonically by non-negative values.",
    ),
    (COUNTER, "set", 1, "set", "COUNTER does not support Set"),
    (COUNTER, "observe", 1, "observe", "COUNTER does not support Observe"),
    (GAUGE, "observe", 1, "observe", "GAUGE does not support Observe"),
    (HISTOGRAM, "increment", 1, "increment", "HISTOGRAM does not support Increment"),
    (HISTOGRAM, "set", 1, "set", "HISTOGRAM does not support Set"),
    (HISTOGRAM, "value", None, "get", "HISTOGRAM does not support Value"),
]


@pytest.mark.parametrize(("kind", "method", "value", "verb", "message"), REFUSED)
@pytest.mark.usefixtures("server")
def test_what_a_kind_does_not_do_is_refused_in_tritons_words(kind, method, value, verb, message):
    things = family(kind)
    metric = things.Metric(buckets=[1.0] if kind is HISTOGRAM else None)
    with pytest.raises(pb_utils.TritonModelException) as caught:
        getattr(metric, method)(*([] if value is None else [value]))
    assert str(caught.value) == (f"Failed to {verb} metric value: {WHERE}TRITONSERVER_METRIC_KIND_{message}")


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (COUNTER, {"labels": ["a"]}, "Failed to create metric. Labels must be a dictionary."),
        (HISTOGRAM, {}, "Failed to create metric. Missing required buckets."),
        (HISTOGRAM, {"buckets": (1.0,)}, "Failed to create metric. Buckets must be a list."),
        (COUNTER, {"buckets": [1.0]}, "Failed to create metric. Unexpected buckets found."),
        (GAUGE, {"buckets": [1.0]}, "Failed to create metric. Unexpected buckets found."),
        (
            HISTOGRAM,
            {"buckets": [2.0, 1.0]},
            "Failed to create metric. Buckets must be in ascending order, each once, got [2.0, 1.0].",
        ),
        (
            HISTOGRAM,
            {"buckets": [float("nan")]},
            "Failed to create metric. Buckets must be in ascending order, each once, got [nan].",
        ),
        (
            COUNTER,
            {"labels": {"a": 1}},
            "Failed to create metric. Labels must be a dictionary of str to str, got 'a': 1.",
        ),
        (
            COUNTER,
            {"labels": {"a-b": "1"}},
            f"Failed to create metric. {WHERE}'a-b' is no name for a label: letters, digits and '_', not two of these in"
            " front, and not 'le' for a histogram",
        ),
    ],
)
@pytest.mark.usefixtures("server")
def test_a_metric_that_cannot_be_made_is_refused(kind, options, message):
    things = family(kind)
    with pytest.raises(pb_utils.TritonModelException) as caught:
        things.Metric(**options)
    assert str(caught.value) == message


@pytest.mark.usefixtures("server")
def test_a_family_of_another_kind_has_the_name():
    kept = family(COUNTER)
    with pytest.raises(pb_utils.TritonModelException) as caught:
        family(GAUGE)
    assert str(caught.value) == (
        f"Error when creating MetricFamily: {WHERE}metric family 'things' is a counter already, and can't be a gauge"
    )
    del kept


def test_without_metrics_there_are_no_families(hosts):
    hosts(Server(enabled=False))
    with pytest.raises(
        pb_utils.TritonModelException, match=r"^Error when creating MetricFamily: .*allow-metrics"
    ):
        family()


def test_nor_while_a_configuration_is_completed():
    attach(Host(".", lambda level, message: None, phase="auto_complete_config"))
    with pytest.raises(pb_utils.TritonModelException, match=r"^Error when creating MetricFamily: "):
        family()


def test_metrics_end_with_their_family(server):
    things = family()
    counter = things.Metric()
    counter.increment(1)
    del things
    gc.collect()
    with pytest.raises(pb_utils.TritonModelException) as caught:
        counter.increment(1)
    assert str(caught.value) == (
        "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The 'MetricFamily' object should"
        " be deleted AFTER its corresponding 'Metric' objects have been deleted."
    )
    server.until(lambda: not server.lines())


def test_a_model_that_counts_much_is_put_together(server):
    things = family()
    counter = things.Metric()
    for _ in range(20_000):
        counter.increment(1)
    assert counter.value() == 20_000
    assert len(server.told) < 2_000


def test_what_is_put_together_is_told_without_anybody_asking(server):
    things = family(GAUGE)
    gauges = [things.Metric({"n": str(number)}) for number in range(2_000)]
    for gauge in gauges:
        gauge.set(1)
    server.until(lambda: sum(line.endswith(" 1") for line in server.lines()) == len(gauges))


def test_threads_lose_no_count(server):
    things = family()
    counter = things.Metric()

    def count():
        for _ in range(2_000):
            counter.increment(1)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter.value() == 8_000


def test_who_sees_an_answer_sees_what_was_counted_for_it(python_model):
    from actors.values.datatypes import DataType
    from engine.worker.backends.testing import LocalRequest, run

    server = Server()
    backend, info = python_model(
        """
class TritonPythonModel:
    def initialize(self, args):
        self.family = pb_utils.MetricFamily("things", "What there is", pb_utils.MetricFamily.COUNTER)
        self.counter = self.family.Metric({"of": args["model_name"]})
    def execute(self, requests):
        for _ in range(1000):
            self.counter.increment(1)
        return [pb_utils.InferenceResponse([]) for _ in requests]
""",
        inputs=[("X", DataType.FP32, [2])],
        outputs=[("Y", DataType.FP32, [2])],
        calls=server.calls(),
    )
    for total in (1000, 2000):
        run(backend, info, [LocalRequest({"X": np.ones(2, "f4")})])
        assert server.lines() == [f'things{{of="model"}} {total}']


def test_a_refused_family_is_the_reason_of_a_failed_load(python_model):
    with pytest.raises(LoadError, match=r"Error when creating MetricFamily: .*'a-b' is no name for a metric"):
        python_model(
            """
class TritonPythonModel:
    def initialize(self, args):
        pb_utils.MetricFamily("a-b", "", pb_utils.MetricFamily.COUNTER)
""",
            inputs=[],
            outputs=[],
            calls=Server().calls(),
        )
