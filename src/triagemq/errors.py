"""Every error a user can see.

TriageError                  base; `exit_code` is what the command line returns
├── ScenarioError            a scenario file or table is wrong; carries every Problem found
├── ParameterError           a number handed to a function is impossible (shape, sign, NaN, range)
├── PlanError                a plan cannot be made, read, or does not fit the scenario it is used with
├── TraceError               a trace cannot be recorded or read: interrupted, damaged, or not a trace
├── NetworkError             this machine's network cannot be changed as asked, or lacks what that needs
├── DecodeError              a datagram is not MQTT-SN 1.2; carries reason, message type, offset
├── OutputError              a result cannot be written where it was asked to go
└── MissingDependencyError   a command needs an install group that is not there
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = [
    "DecodeError",
    "MissingDependencyError",
    "NetworkError",
    "OutputError",
    "ParameterError",
    "PipelineError",
    "PlanError",
    "Problem",
    "ScenarioError",
    "TraceError",
    "TriageError",
]


class TriageError(Exception):
    """Something the user can understand and act on: one line, no traceback."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a file: where it is, what is wrong, and what to write instead."""

    file: str
    line: int | None
    field: str
    what: str
    fix: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line is not None else self.file
        return f"{place}: {self.field}: {self.what}; {self.fix}"


class ScenarioError(TriageError):
    """A scenario is wrong. Its text is one line per problem."""

    exit_code = 2

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class ParameterError(TriageError, ValueError):
    """A parameter is impossible: `parameter` names it, `problem` says why."""

    exit_code = 2

    def __init__(self, parameter: str, problem: str) -> None:
        self.parameter = parameter
        self.problem = problem
        super().__init__(f"{parameter}: {problem}")


class PlanError(TriageError):
    """A plan cannot be made or read, or belongs to another scenario."""


class TraceError(TriageError):
    """A trace cannot be recorded (columns that do not fit) or read (interrupted, damaged, or not a trace)."""


class NetworkError(TriageError):
    """This machine's network cannot be changed as asked: no such interface, no right to, or a kernel without it."""


class DecodeError(TriageError):
    """A datagram is not a message of MQTT-SN 1.2.

    `reason` is a stable code to count by (`triagemq.mqttsn.RejectionReason`), `message_type` the octet that
    names the message if it was reached, `offset` the octet of the datagram at which it went wrong.
    """

    def __init__(self, reason: str, message_type: int | None, offset: int) -> None:
        self.reason = reason
        self.message_type = message_type
        self.offset = offset
        super().__init__(reason, message_type, offset)

    def __str__(self) -> str:
        message = "" if self.message_type is None else f" of a message of type 0x{self.message_type:02X}"
        return f"not MQTT-SN 1.2: {self.reason.replace('_', ' ')} at octet {self.offset}{message}"


class PipelineError(TriageError):
    """Tables cannot be made (no Java, a log or mapping that does not fit, a failed job) or read (no tables there)."""


class OutputError(TriageError):
    """A result cannot be written: the path exists, cannot be made, or the disk is full."""


class MissingDependencyError(TriageError):
    """A command needs packages of an install group that is not installed."""

    def __init__(self, module: str, group: str) -> None:
        self.module = module
        self.group = group
        super().__init__(
            f"this needs the package {module!r}; install it with: pip install 'triagemq[{group}]'"
        )
