"""The paced engine without a server: the loop that a server is measured beside."""

from __future__ import annotations

import time
from typing import Final

from benchmarks.llm_stream.paced import Paced
from benchmarks.llm_stream.timing import Timing, Watched

_CLOCK: Final = time.perf_counter


def run_alone(*, pace: float, streams: int, tokens: int, seconds: float) -> Timing:
    """Have an engine of its own answer `streams` streams at a time, for `seconds`."""
    timing, engine = Timing(), Paced(pace=pace)
    watched: dict[int, Watched] = {}
    began = _CLOCK()
    for number in range(streams):
        _begin(engine, watched, number, tokens, timing)
    number = streams
    while _CLOCK() < began + seconds:
        outputs = engine.step()
        now = _CLOCK()
        for output in outputs:
            timing.events += 1
            watched[output.stream].came(len(output.ids), now)
            if output.finish:
                del watched[output.stream]
                timing.streams += 1
                _begin(engine, watched, number, tokens, timing)
                number += 1
    timing.took = _CLOCK() - began
    return timing


def _begin(engine: Paced, watched: dict[int, Watched], number: int, tokens: int, timing: Timing) -> None:
    watched[number] = Watched(timing, _CLOCK())
    engine.add(number, engine.prepare((), {"max_tokens": tokens}))
