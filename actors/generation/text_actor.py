"""The actor that keeps a version's text worker: a supervised child, restarted when the worker dies."""

from __future__ import annotations

import trio

from actors.generation.policy.progress import Progress, Seen, look_every
from actors.generation.text_line import TextLine
from actors.generation.texts import TextWorker, TextWorkerDied, TextWorkers
from actors.supervision.context import ChildContext
from actors.wire.frames import FrameError


class TextWorkerHangs(Exception):
    """A text worker has shown no sign of life for too long."""


class TextsFailed(Exception):
    """A text worker can't load the model's tokenizer. The text is its reason."""


async def run(ctx: ChildContext, line: TextLine, workers: TextWorkers, *, hang_within: float = 0.0) -> None:
    """Launch a worker, and pass on what it says, until it dies or this is asked to stop.

    One that has streams and shows no sign of life for `hang_within` seconds is ended; 0: it is not.

    It counts as started at once: whether there is a tokenizer is for the version's status to say, as with
    instances that can't load.
    """
    ctx.started()
    with trio.CancelScope() as scope:
        ctx.stopping.then(scope.cancel)
        worker = await _launched(line, workers)
        try:
            await line.joined(worker, await _ready(line, worker))
            ctx.publish(pid=worker.pid, restored=line.restored)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(line.flush)
                if hang_within:
                    nursery.start_soon(_watch, line, hang_within)
                await _listen(ctx, line, worker)
        except* (FrameError, TextWorkerHangs):
            worker.kill()
            raise
        finally:
            line.left()
            with trio.CancelScope(shield=True):
                await worker.close()


async def _launched(line: TextLine, workers: TextWorkers) -> TextWorker:
    try:
        return await workers.launch()
    except OSError as error:
        line.never_came(f"a text worker can't be launched: {error}")
        raise


async def _ready(line: TextLine, worker: TextWorker) -> dict[str, object]:
    """Return what a worker says of its tokenizer, once it is loaded."""
    try:
        head, _ = await worker.receive()
        if head[0] == "failed":
            line.give_up(str(head[1]))
            raise TextsFailed(str(head[1]))
        if head[0] != "ready" or not isinstance(head[1], dict):
            raise FrameError(f"a text worker began with {head[0]!r}")
    except (TextWorkerDied, FrameError) as error:
        line.never_came(f"it loads no tokenizer: {error}")
        raise
    return head[1]


async def _watch(line: TextLine, within: float) -> None:
    progress = Progress(within, trio.current_time())
    pinged = -1  # what had been heard as it was last asked for a sign of life
    while True:
        await trio.sleep(look_every(within))
        progress.look(Seen(busy=len(line) > 0, signs=line.heard), trio.current_time())
        if progress.hangs:
            raise TextWorkerHangs(f"the text worker has shown no sign of life for {within:g} s")
        if progress.silent and pinged != line.heard:
            pinged = line.heard
            line.ping()


async def _listen(ctx: ChildContext, line: TextLine, worker: TextWorker) -> None:
    while True:
        head, body = await worker.receive()
        await line.report(head, body)
        ctx.progressed()
