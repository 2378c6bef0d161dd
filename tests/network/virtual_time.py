"""Virtual time for the embedded data plane: a clock that stands still, and an alarm that moves it."""

from __future__ import annotations

from collections.abc import Callable


class VirtualTime:
    """`clock` and `alarm` for an EmbeddedDataPlane. Alarms ring `late_ns` after the time they are set to."""

    def __init__(self, late_ns: int = 0) -> None:
        self.now_ns = 0
        self._late_ns = late_ns
        self._alarms: list[_VirtualAlarm] = []

    def clock(self) -> int:
        return self.now_ns

    def alarm(self, callback: Callable[[], None]) -> _VirtualAlarm:
        alarm = _VirtualAlarm(self, callback, self._late_ns)
        self._alarms.append(alarm)
        return alarm

    def run_until(self, until_ns: int) -> None:
        """Ring every alarm on the way, those set for `until_ns` included."""
        while alarm := min((each for each in self._alarms if each.rings_ns <= until_ns), default=None):
            self.now_ns = max(self.now_ns, alarm.rings_ns)
            alarm.ring()
        self.now_ns = max(self.now_ns, until_ns)

    def run_until_quiet(self) -> None:
        while any(alarm.is_set for alarm in self._alarms):
            self.run_until(min(alarm.rings_ns for alarm in self._alarms if alarm.is_set))


class _VirtualAlarm:
    _UNSET = float("inf")

    def __init__(self, time: VirtualTime, callback: Callable[[], None], late_ns: int) -> None:
        self._time, self._callback, self._late_ns = time, callback, late_ns
        self.rings_ns: float = self._UNSET

    @property
    def is_set(self) -> bool:
        return self.rings_ns != self._UNSET

    def __lt__(self, other: _VirtualAlarm) -> bool:
        return self.rings_ns < other.rings_ns

    def set(self, delay_ns: int) -> None:
        self.rings_ns = self._time.now_ns + max(delay_ns, 0) + self._late_ns

    def close(self) -> None:
        self.rings_ns = self._UNSET

    def ring(self) -> None:
        self.rings_ns = self._UNSET
        self._callback()
