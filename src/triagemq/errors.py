"""Every error a user can see.

TriageError                        base; `exit_code` is what the command line returns
├── ScenarioError                  a scenario file or table is wrong; carries every Problem found
├── ParameterError                 an argument or option is impossible (shape, sign, NaN, range, form)
├── PlanError                      a plan cannot be made, read, or does not fit the scenario it is used with
├── TraceError                     a trace cannot be recorded or read: interrupted, damaged, or not a trace
├── PipelineError                  tables cannot be made or read
│   └── MappingError               the mapping file of a log is wrong
├── ModelError                     a learned model cannot be read, or is not for what it is used with
├── DecodeError                    a datagram is not MQTT-SN 1.2; carries reason, message type, offset
├── BrokerError                    a broker cannot be reached, started, or refuses the gateway
├── MqttError                      a broker sends what is not MQTT
├── GatewayError                   a gateway cannot run with these settings
├── ClientError                    a publisher or subscriber cannot do what is requested
│   ├── GatewayUnreachableError    no gateway answers there
│   ├── RefusedError               the gateway says no; carries its return code
│   ├── PromiseRefusedError        a latency cannot be promised; carries why, and which could be
│   ├── ClosedError                used after it was closed, or before it was opened
│   └── CoordinatorError           the coordinator says no; carries its HTTP status
│       └── CoordinatorUnreachableError
├── NetworkError                   this machine's network cannot be changed as requested, or lacks what that needs
│   ├── SwitchError                an OpenFlow switch refuses a request; carries which
│   ├── SessionClosedError         the connection to a switch has ended
│   └── VirtualSwitchError         Open vSwitch is not there, does not start, or refuses an order
├── CodeError                      a topic has no code, or an address is that of no topic
├── OutputError                    a result cannot be written to the requested place
└── MissingDependencyError         a command needs an install group that is not there

The coordinator has its own: what it answers over REST with a status (RequestError and its kinds, and StoreError, in
coordinator/refusals.py), and what goes wrong with the processes it leads (ChildError, ControlError).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar


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


class PipelineError(TriageError):
    """Tables cannot be made (no Java, a log or mapping that does not fit, a failed job) or read (no tables there)."""


class MappingError(PipelineError):
    """The mapping file of a log is wrong. Its text is one line per problem."""

    exit_code = 2


class ModelError(TriageError):
    """A learned model is damaged, of another version, or of other features or counters than it is used with."""


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


class BrokerError(TriageError):
    """A broker cannot be reached, started, or refuses the gateway."""


class MqttError(TriageError):
    """A broker sent octets that are not MQTT; the connection is given up and made again."""


class GatewayError(TriageError):
    """The gateway cannot run with these settings: address in use, state of another version, a wrong file."""


class ClientError(TriageError):
    """A publisher or subscriber cannot do what is requested."""


class GatewayUnreachableError(ClientError):
    """No gateway answers."""


class RefusedError(ClientError):
    """The gateway answered `what` with no; `return_code` is that of MQTT-SN (`triagemq.mqttsn.ReturnCode`)."""

    def __init__(self, what: str, return_code: int, why: str) -> None:
        self.what = what
        self.return_code = return_code
        super().__init__(f"{what} was refused: {why}")


class PromiseRefusedError(ClientError):
    """A latency cannot be promised.

    `missed` is the flow that would come too late, publisher and topic, `missed_by_seconds` by how much, and
    `offer_seconds` the smallest max_latency that would be admitted now; each None where there is none.
    """

    def __init__(
        self,
        message: str,
        *,
        reason: str,
        missed: tuple[str, str] | None = None,
        missed_by_seconds: float | None = None,
        offer_seconds: float | None = None,
    ) -> None:
        self.reason = reason
        self.missed = missed
        self.missed_by_seconds = missed_by_seconds
        self.offer_seconds = offer_seconds
        super().__init__(message)


class ClosedError(ClientError):
    """The client was closed, or not opened yet."""


class CoordinatorError(ClientError):
    """The coordinator answered with an error; `status` is that of HTTP, 0 if it was not HTTP at all."""

    def __init__(self, message: str, status: int = 0) -> None:
        self.status = status
        super().__init__(message)


class CoordinatorUnreachableError(CoordinatorError):
    """No coordinator answers."""


class NetworkError(TriageError):
    """This machine's network cannot be changed as requested: no such interface, no right to, or a kernel without it."""


class SwitchError(NetworkError):
    """A switch refused a request; `requests` names those it refused and why."""

    def __init__(self, switch: str, requests: tuple[str, ...]) -> None:
        self.switch = switch
        self.requests = requests
        more = f" (and {len(requests) - 1} more)" if len(requests) > 1 else ""
        super().__init__(f"switch {switch} refused {requests[0]}{more}")


class SessionClosedError(NetworkError):
    """The connection to a switch has ended; the switch keeps its rules, and comes back by itself."""


class VirtualSwitchError(NetworkError):
    """Open vSwitch is not there, does not start, or refuses an order."""


class CodeError(TriageError):
    """A topic has no code, an address is that of no topic, or a tree of topics cannot be read."""


class OutputError(TriageError):
    """A result cannot be written: the path exists, cannot be made, or the disk is full."""


class MissingDependencyError(TriageError):
    """A command needs packages of an install group that is not installed."""

    GROUPS: ClassVar[Mapping[str, str]] = {
        "typer": "cli",
        "rich": "cli",
        "numpy": "coordinator",
        "scipy": "coordinator",
        "numba": "coordinator",
        "pydantic": "coordinator",
        "yaml": "coordinator",
        "pyarrow": "coordinator",
        "amqtt": "coordinator",
        "fastapi": "coordinator",
        "uvicorn": "coordinator",
        "websockets": "coordinator",
        "sqlalchemy": "coordinator",
        "matplotlib": "lab",
        "plotly": "pipeline",
        "pandas": "pipeline",
        "pyspark": "pipeline",
        "xgboost": "pipeline",
        "sklearn": "pipeline",
        "nicegui": "page",
    }
    """The install group of each package that the base install does not have."""

    def __init__(self, module: str, group: str) -> None:
        self.module = module
        self.group = group
        super().__init__(f"this needs the package {module!r}; install it with: {self.remedy(group)}")

    @staticmethod
    def remedy(group: str) -> str:
        """The command that installs a group, for an installed package and for a checkout."""
        return f"pip install 'triagemq[{group}]' (in a checkout: pip install '.[{group}]')"
