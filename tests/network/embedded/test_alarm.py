"""An alarm rings once, at the time set last, and not after it is closed."""

from __future__ import annotations

import asyncio
import time

from triagemq.network.embedded.plane import TimerAlarm

MILLISECOND = 1_000_000


def test_an_alarm_rings_once_at_the_time_set_last() -> None:
    async def run() -> None:
        rung: list[int] = []
        alarm = TimerAlarm(lambda: rung.append(time.monotonic_ns()))
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
