"""Alarms ring once, at the time set last, and not after they are closed."""

from __future__ import annotations

import asyncio
import time

import pytest

from triagemq.network import Alarm, open_alarm
from triagemq.network.alarm import LoopAlarm, TimerAlarm

MILLISECOND = 1_000_000


@pytest.mark.parametrize("make", [TimerAlarm, LoopAlarm])
def test_an_alarm_rings_once_at_the_time_set_last(make: type[TimerAlarm] | type[LoopAlarm]) -> None:
    async def run() -> None:
        rung: list[int] = []
        alarm: Alarm = make(asyncio.get_running_loop(), lambda: rung.append(time.monotonic_ns()))
        began_ns = time.monotonic_ns()
        alarm.set(5 * MILLISECOND)
        alarm.set(20 * MILLISECOND)
        await asyncio.sleep(0.1)
        assert len(rung) == 1
        assert rung[0] - began_ns >= 19 * MILLISECOND
        for delay_ns in (0, -5):
            alarm.set(delay_ns)
            await asyncio.sleep(0.05)
        assert len(rung) == 3
        alarm.set(MILLISECOND)
        alarm.close()
        alarm.close()
        await asyncio.sleep(0.02)
        assert len(rung) == 3

    asyncio.run(run())


def test_without_timer_descriptors_the_loop_s_own_timer_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AttributeError("timerfd_create")

    async def run() -> None:
        alarm = open_alarm(lambda: None)
        assert isinstance(alarm, TimerAlarm)
        alarm.close()
        monkeypatch.setattr("triagemq.network.alarm.TimerAlarm", refuse)
        assert isinstance(open_alarm(lambda: None), LoopAlarm)

    asyncio.run(run())
