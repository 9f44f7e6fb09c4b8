"""Alarms ring, once each time they are set."""

import trio

from actors.seams.alarm import Alarm
from chaos.record.descriptors import left_open, open_descriptors


async def test_an_alarm_rings_when_it_is_due():
    rung = trio.Event()
    alarm = Alarm(rung.set)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(alarm.run)
        started = trio.current_time()
        alarm.set(0.0002)
        await rung.wait()
        assert trio.current_time() - started >= 0.0002
        nursery.cancel_scope.cancel()
    alarm.close()


async def test_setting_an_alarm_again_moves_it():
    rings = []
    alarm = Alarm(lambda: rings.append(trio.current_time()))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(alarm.run)
        alarm.set(60.0)
        alarm.set(0.0)
        while not rings:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert len(rings) == 1
    alarm.close()


async def test_a_closed_alarm_gives_its_descriptor_back():
    before = open_descriptors()
    Alarm(lambda: None).close()
    assert not left_open(before)
