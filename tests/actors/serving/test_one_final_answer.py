"""Each accepted request gets one final answer, and each refused one none, whatever happens meanwhile.

Workers die, callers leave and time passes.
"""

from functools import partial
from typing import Any

import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors.serving.deaths import settle
from actors.serving.policy.retries import Exit, Oom, Signal, after_death
from actors.serving.standing import Status
from actors.values.specs import DynamicBatching, InstanceSpec, QueueBounds, QueuePolicy, Retry, TimeoutAction
from chaos.simulation.judging.invariants import wrong
from tests.support.examples import examples
from tests.support.model_doubles import Stage

EXAMPLES = examples(300)

sends = st.tuples(
    st.just("send"),
    st.integers(1, 3),
    st.sampled_from([None, 0.5, 2.0]),  # the client's own deadline
    st.integers(0, 2),
)
finishes = st.tuples(st.just("finish"), st.integers(0, 1))
kills = st.tuples(
    st.just("kill"), st.integers(0, 1), st.sampled_from([Signal(11), Signal(11), Signal(9), Oom(), Exit(0)])
)
revivals = st.tuples(st.just("revive"), st.integers(0, 1))
exhaustions = st.tuples(st.just("exhaust"), st.integers(0, 1))
cancellations = st.tuples(st.just("cancel"), st.integers(0, 30))
pauses = st.tuples(st.just("pause"), st.sampled_from([0.1, 1.0, 3.0]))
failures = st.tuples(st.just("no memory"), st.integers(0, 1))
stories = st.lists(
    sends | sends | finishes | finishes | kills | revivals | exhaustions | cancellations | pauses | failures,
    min_size=20,
    max_size=50,
)
schedulings = st.builds(
    DynamicBatching,
    max_queue_delay=st.sampled_from([0.0, 0.5]),
    preserve_ordering=st.booleans(),
    default_queue_policy=st.builds(
        QueuePolicy,
        default_timeout=st.sampled_from([0.0, 1.5]),
        timeout_action=st.sampled_from(TimeoutAction),
        max_queue_size=st.sampled_from([0, 0, 3]),
    ),
)


class Story:
    """One run of a model through a list of events."""

    def __init__(self, stage):
        self.stage = stage
        self.requests = []

    async def tell(self, events):
        for name, *details in events:
            getattr(self, name.replace(" ", "_"))(*details)
            await trio.testing.wait_all_tasks_blocked()
            self.check_now()
            if name == "pause":
                await trio.sleep(details[0])
                await trio.testing.wait_all_tasks_blocked()
                self.check_now()

    def send(self, rows, within, priority):
        options = {} if within is None else {"deadline": trio.current_time() + within}
        self.requests.append(self.stage.sending(rows, priority=priority, **options))

    def finish(self, number):
        worker = self.stage.workers[number]
        if worker.outstanding:
            worker.finish()
            worker.instance.exhausted = False

    def kill(self, number, reason):
        """Settle a death as an instance actor does: the oldest batch was executing, the others waited."""
        worker = self.stage.workers[number]
        instance, state = worker.instance, self.stage.state
        if instance.worker is None:
            return
        instance.worker = None
        instance.last_reason = str(reason)
        batches = list(worker.outstanding.values())
        worker.outstanding.clear()
        waiting = [request for batch in batches[1:] for request in batch.requests]
        for request in waiting:
            request.attempts -= 1
        aftermath = after_death(
            reason,
            [batch.requests for batch in batches[:1]],
            waiting,
            retry=state.spec.retry,
            alone=any(batch.alone for batch in batches[:1]),
            instance=instance.spec.name,
        )
        settle(state, instance, aftermath)

    def revive(self, number):
        worker = self.stage.workers[number]
        if worker.instance.worker is None:
            self.stage.state.instance_ready(worker.instance, worker)

    def exhaust(self, number):
        instance = self.stage.workers[number].instance
        if instance.worker is None:
            self.stage.state.instance_exhausted(instance)

    def cancel(self, number):
        if number < len(self.requests):
            self.stage.state.cancel(self.requests[number])

    def no_memory(self, number):
        self.stage.workers[number].fail_next = OSError(12, "Cannot allocate memory")

    def pause(self, seconds):
        pass

    async def end(self):
        """Let every worker run until all requests are answered, which must come soon."""
        state = self.stage.state
        if state.status is Status.READY:
            state.standing.become(Status.UNLOADING)
        for _ in range(200):
            if not state.in_flight and all(self.settled(request) for request in self.requests):
                return
            for number in range(len(self.stage.workers)):
                self.revive(number)
                self.finish(number)
            await trio.testing.wait_all_tasks_blocked()
            await trio.sleep(0.1)
        raise AssertionError(f"{state.in_flight} were never answered")

    def check_now(self):
        """No request waits that could go on, and no request waits together with a suspect."""
        assert [what for what, _ in wrong(self.stage.state, trio.current_time(), grace=0.0)] == []

    @staticmethod
    def settled(request):
        return request.reply.refused is not None or request.reply.admitted

    def check(self):
        state = self.stage.state
        for request in self.requests:
            assert len(request.reply.parts) == (0 if request.reply.refused else 1), request
        assert state.statistics.reply_violations == 0
        assert not len(state.queue)
        assert state.queue.nbytes == 0
        assert not any(instance.hunting for instance in state.instances)
        answered = sum(request.reply.answered for request in self.requests)
        assert state.statistics.success_count == answered
        assert state.statistics.failure_count == sum(
            request.reply.error is not None for request in self.requests
        )
        self.check_order()

    def check_order(self):
        """Where order is promised, answers keep the order in which their requests first went to a worker."""
        state = self.stage.state
        if not state.spec.scheduling.preserve_ordering:
            return
        first_sent: dict[Any, Any] = {}
        moments = [
            (at, n, worker) for worker in self.stage.workers for n, (at, _, _) in enumerate(worker.sent)
        ]
        for at, n, worker in moments:
            for request in worker.sent[n][1]:
                first_sent[request.reply] = min(at, first_sent.get(request.reply, at))
        order = [first_sent[port] for port in self.stage.arrivals if port in first_sent]
        assert order == sorted(order)


async def run_story(events, scheduling, retry, bounds):
    async with trio.open_nursery() as nursery:
        stage = Stage(
            nursery,
            capacity=2,
            scheduling=scheduling,
            retry=retry,
            queue_bounds=bounds,
            instances=tuple(InstanceSpec(name=f"model_0_{n}") for n in range(2)),
        )
        story = Story(stage)
        await story.tell(events)
        await story.end()
        story.check()
        nursery.cancel_scope.cancel()


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    stories,
    schedulings,
    st.sampled_from(Retry),
    st.builds(QueueBounds, requests=st.sampled_from([1, 2, 1024])),
)
def test_every_accepted_request_gets_one_final_answer(events, scheduling, retry, bounds):
    trio.run(
        partial(run_story, events, scheduling, retry, bounds),
        clock=trio.testing.MockClock(autojump_threshold=0),
    )
