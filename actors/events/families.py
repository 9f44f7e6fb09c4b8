"""Metric families of the stream of events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from actors.events.feed import EventFeed
from actors.values.families import Block, Families, Family, SplitFamily, by, once

EVENTS: Final[Families[EventFeed]] = (
    SplitFamily(
        "tritium_events_total",
        "counter",
        "Events that were told, by name; those of single requests and connections are not among them",
        lambda feed: by("event", sorted(feed.counts.told.items())),
    ),
    Family(
        "tritium_event_followers",
        "gauge",
        "Clients that follow the stream of events",
        lambda feed: feed.counts.followers,
    ),
    Family(
        "tritium_event_followers_refused_total",
        "counter",
        "Clients that could not follow, since as many as may did",
        lambda feed: feed.counts.refused,
    ),
    Family(
        "tritium_events_missed_total",
        "counter",
        "Events that were no longer kept when a client that follows was ready for them",
        lambda feed: feed.counts.missed,
    ),
    Family(
        "tritium_events_kept_bytes",
        "gauge",
        "Memory that the kept events take, in bytes",
        lambda feed: feed.kept[1],
    ),
)


def event_blocks(feed: EventFeed) -> Iterator[Block]:
    """Yield what was told, and who follows."""
    yield from once(EVENTS, feed)
