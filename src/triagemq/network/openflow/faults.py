"""What can go wrong between this process and a switch."""

from __future__ import annotations

from triagemq.errors import NetworkError

__all__ = ["RuleError", "SessionClosedError", "SwitchError", "VirtualSwitchError"]


class SwitchError(NetworkError):
    """A switch refused a request; `requests` names those it refused and why."""

    def __init__(self, switch: str, requests: tuple[str, ...]) -> None:
        self.switch = switch
        self.requests = requests
        more = f" (and {len(requests) - 1} more)" if len(requests) > 1 else ""
        super().__init__(f"switch {switch} refused {requests[0]}{more}")


class SessionClosedError(NetworkError):
    """The connection to a switch has ended; the switch keeps its rules, and comes back by itself."""


class RuleError(NetworkError):
    """A set of rules would not do what it is for; it was not sent to any switch."""

    def __init__(self, switch: str, rule: str, problem: str) -> None:
        self.switch = switch
        self.rule = rule
        self.problem = problem
        super().__init__(f"switch {switch}, rule {rule}: {problem}")


class VirtualSwitchError(NetworkError):
    """Open vSwitch is not there, does not start, or refuses an order."""
