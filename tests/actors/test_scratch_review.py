"""scratch"""
import math
import pytest, trio
from actors.scheduling.retries import Aftermath, DeathReason
from actors.messages.errors import *
from actors.messages.requests import FLAG_SEQUENCE_END as END, FLAG_SEQUENCE_START as START
from actors.specs import *
from actors.frames import Answer
from tests.support.model_doubles import Stage, make_request
from tests.actors.test_sequences_in_virtual_time import stage, step, real, die, come_back, OLDEST, DIRECT, KEPT

async def test_backlog_not_seated_in_dying(stage, autojump_clock):
    model = stage(max_batch_size=1)
    last = await step(model, 1, START | END)
    await model.settled()
    waiting = await step(model, 2, START)
    die(model, refuse=((last, Unavailable("lost")),))
    assert last.reply.error is not None
    assert waiting.reply.error is None
    come_back(model)
    await model.settled()
    assert real(model.worker)[-1] == [waiting]

async def test_line(stage, autojump_clock):
    model = stage(max_batch_size=1, queue_bounds=QueueBounds(requests=1))
    await step(model, 1, START)
    await model.settled()
    await step(model, 1)
    await step(model, 2, START)
    newcomer = model.sending(correlation_id=3, flags=START)
    await model.settled()
    going_on = model.sending(correlation_id=1, flags=END)
    await model.settled()
    assert not newcomer.reply.admitted and not going_on.reply.admitted
    model.worker.finish()
    await model.settled()
    assert going_on.reply.admitted
    assert not newcomer.reply.admitted
    model.worker.finish()
    await model.settled()
    model.worker.finish()
    await model.settled()
    assert newcomer.reply.admitted

async def test_slo_warm(autojump_clock, nursery):
    from tests.support.model_doubles import make_request
    await trio.sleep(1000)
    stage = Stage(nursery, slo=Slo(p99=0.1), scheduling=DynamicBatching(), ready=False)
    r = stage.request()
    stage.worker.dispatch([r], now=trio.current_time())
    await trio.sleep(0.01)
    stage.worker.finish()
    print(stage.state.slo.sample(0))
    assert stage.state.slo.sample(0).service < 1 or math.isnan(stage.state.slo.sample(0).service)

@pytest.mark.parametrize("how", ["slow", "death"])
async def test_slo_recovers(autojump_clock, nursery, how):
    from tests.actors.test_slo_in_virtual_time import Load, serve
    stage = Stage(nursery, slo=Slo(p99=0.125), scheduling=DynamicBatching())
    pace = [1/64]
    nursery.start_soon(serve, stage.worker, lambda rows: pace[0])
    load = Load(stage, 256.0)
    nursery.start_soon(load.run)
    counts, p99 = await load.for_seconds(5.0)
    print(counts, stage.state.slo.sample(0))
    if how == "slow":
        pace[0] = 5.0
        await load.for_seconds(30.0)
        pace[0] = 1/64
    else:
        inst = stage.worker.instance; inst.worker = None
        await load.for_seconds(60.0)
        stage.state.instance_ready(inst, stage.worker)
    await load.for_seconds(20.0)
    counts, p99 = await load.for_seconds(5.0)
    print(counts, p99, stage.state.slo.sample(0))
    assert counts["answered"] > 0.8 * 5 * 256

async def test_resched_leaving(stage, autojump_clock):
    IT = SequenceBatching(strategy=OldestStrategy(), iterative=True)
    model = stage(IT, max_batch_size=1, instances=tuple(InstanceSpec(name=f"m_{n}") for n in range(2)))
    running = await model.send()
    await model.settled()
    worker = model.workers[0]
    model.state.remove_instance(worker.instance)
    worker.finish(answers=[Answer(rescheduled=True)])
    await model.settled()
    print(running.reply.parts, real(model.workers[1]))

async def test_alone_lanes(stage, autojump_clock):
    model = stage(KEPT, max_batch_size=1, capacity=2, instances=(InstanceSpec(name="m", lanes=2),))
    a = await step(model, 1, START); b = await step(model, 2, START)
    await model.settled()
    die(model, suspects=((a,), (b,)))
    come_back(model)
    await model.settled()
    print(real(model.worker)[2:])
    assert real(model.worker)[2:] == [[a]]
    model.worker.outstanding and model.worker.finish()
    await model.settled()
    assert real(model.worker)[2:] == [[a], [b]]
