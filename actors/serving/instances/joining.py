"""How a worker joins the instances of its version: it loads the model, warms up, and serves.

A message about a model that could not be loaded is cut down to its useful part.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import trio

from actors.seams import faults
from actors.serving.instances.post import Post
from actors.serving.instances.watching import WorkerWatch
from actors.serving.instances.worker import LiveWorker
from actors.serving.policy.retries import NotStarted
from actors.values.errors import ErrorCode, TritiumError
from actors.values.events import Event
from actors.values.requests import InferRequest, InferResponse, ReplyPort
from actors.values.specs import WarmupSample


class Joining:
    """One worker's way from its launch to its first client's request."""

    def __init__(self, post: Post, watch: WorkerWatch, worker: LiveWorker) -> None:
        self.loaded = trio.Event()
        self.joined = trio.Event()  # the scheduler has it; before that it runs only warmup
        self.error: str | None = None  # why it can't serve
        self.code = ErrorCode.INTERNAL
        self._post = post
        self._watch = watch
        self._worker = worker
        self._launched_at = trio.current_time()

    async def run(self, pid: int, on_joined: Callable[[], None]) -> None:
        """Warm the worker up once it has loaded its model, and let it join."""
        if faults.points is not None:
            faults.points.passing("instance.joins")
        post = self._post
        await self.loaded.wait()
        passive = post.instance.spec.passive
        if not passive:
            post.enter("warming up")
        for sample in () if passive else post.state.spec.warmup:
            for _ in range(sample.count):
                if not await self._warm(sample):
                    await self._watch.exit_or_kill()
                    return
        if not post.ctx.stopping.is_set():
            post.enter("passive" if passive else "serving")
            self.joined.set()
            now = self._worker.serving_since = trio.current_time()
            seconds = round(now - self._launched_at, 3)
            post.log(Event.WORKER_READY, level="info", **post.who(), pid=pid, seconds=seconds)
            post.state.instance_ready(post.instance, self._worker)
            on_joined()

    async def _warm(self, sample: WarmupSample) -> bool:
        finished = trio.Event()
        port = _WarmupPort(len(sample.requests), finished)
        spec = self._post.state.spec
        requests = [
            InferRequest(
                model_name=spec.name,
                inputs=inputs,
                requested_outputs=spec.output_names,
                reply=port,
                accepted_at=trio.current_time(),
            )
            for inputs in sample.requests
        ]
        self._worker.dispatch(requests, now=trio.current_time())
        await finished.wait()
        await self._worker.held.wait_idle()  # a decoupled model's execution may end after its answers
        if port.errors:
            self.code = ErrorCode.INVALID_ARG
            failed = "".join(f"{error.message}; " for error in port.errors)
            self.failed(f"failed to run warmup sample '{sample.name}': {failed}", "")
            self._watch.verdict = NotStarted(self.error or "")
            self._worker.stop()
            return False
        return True

    def failed(self, message: str, traceback: str) -> None:
        """The model can't be loaded.

        That is final for a version that never served; for one that did, it is a death like others.
        """
        if self.error is not None:
            return
        post = self._post
        self.error = without_importing(message)
        # The code that asked for the first load tells why it failed.
        self._watch.verdict = NotStarted(self.error if post.instance.started_once else "")
        if traceback:
            said = without_importing(traceback)
            post.log(Event.WORKER_OUTPUT, level="error", actor=post.ctx.path, line=said)
        if self.error != message:
            line = traceback or message
            post.log(Event.WORKER_OUTPUT, level="debug", actor=post.ctx.path, line=line)


class _WarmupPort(ReplyPort):
    """Collects the answers of a warmup sample."""

    def __init__(self, expected: int, finished: trio.Event) -> None:
        self._expected = expected
        self._finished = finished
        self.errors: list[TritiumError] = []

    def put(self, part: InferResponse | TritiumError, *, final: bool) -> None:
        """Count one answer. See `actors.values.requests.ReplyPort`."""
        if isinstance(part, InferResponse):
            part.release()
        else:
            self.errors.append(part)
        self._expected -= final
        if not self._expected:
            self._finished.set()


_MODULE: Final = r"(?:<frozen importlib\.[^>\n]*>|[^\n\"]*/importlib/__init__\.py)"
# A frame as Triton's Python backend writes it, and as Python does. Python's may be followed by the source
# line and marks.
_IMPORTING: Final = re.compile(
    rf"^  (?:{_MODULE}\(\d+\): \S+\n|File \"{_MODULE}\", line \d+, in \S+\n(?:    .*\n)*)", re.MULTILINE
)


def without_importing(text: str) -> str:
    """Return a text without the frames of Python's import machinery, which lead to every module's code."""
    return _IMPORTING.sub("", text).removesuffix("\n\nAt:\n")
