"""Traffic between versions, as a scrape shows it."""

from prometheus_client.parser import text_string_to_metric_families

from actors.traffic.families import traffic_blocks
from actors.traffic.mirror import MirrorCounts
from actors.traffic.traffic import TrafficSample
from engine.observability.metrics import Exposition


def series(*samples):
    """Every series about traffic as {(name, label, ...): value}; labels in the order of their names."""
    exposition = Exposition(lambda: traffic_blocks(samples))
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(exposition.text())
        for sample in family.samples
    }


def test_shares_requests_mirrored_copies_and_rollbacks_are_told_by_version():
    sample = TrafficSample(
        name="resnet",
        shares={1: 1.0},
        requests={1: 90, 2: 10},
        mirrored={3: MirrorCounts(sent=9, same=4, different=3, errors=2, uncompared=1, skipped=5)},
        rollbacks={2: 1},
    )
    assert series(sample) == {
        ("tritium_traffic_share", "resnet", "1"): 1.0,
        ("tritium_traffic_requests_total", "resnet", "1"): 90,
        ("tritium_traffic_requests_total", "resnet", "2"): 10,
        ("tritium_traffic_mirrored_total", "resnet", "same", "3"): 4,
        ("tritium_traffic_mirrored_total", "resnet", "different", "3"): 3,
        ("tritium_traffic_mirrored_total", "resnet", "error", "3"): 2,
        ("tritium_traffic_mirrored_total", "resnet", "uncompared", "3"): 1,
        ("tritium_traffic_mirrored_total", "resnet", "skipped", "3"): 5,
        ("tritium_traffic_rollbacks_total", "resnet", "2"): 1,
    }


def test_models_of_one_name_are_told_apart_by_their_namespace():
    samples = [
        TrafficSample(name="m", namespace=where, shares={1: 1.0}, requests={}, mirrored={}, rollbacks={})
        for where in ("/a", "/b")
    ]
    assert set(series(*samples)) == {
        ("tritium_traffic_share", "m", "/a", "1"),
        ("tritium_traffic_share", "m", "/b", "1"),
    }


def test_a_server_without_plans_shows_nothing_of_traffic():
    assert series() == {}
    assert series(TrafficSample(name="m", shares={}, requests={}, mirrored={}, rollbacks={})) == {}
