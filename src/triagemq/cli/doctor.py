"""`triage doctor`: what this machine can and cannot do; `triage network restore`: undo what a killed run left on it."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from triagemq.cli import options, terminal
from triagemq.errors import MissingDependencyError, NetworkError
from triagemq.programs import find_program


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a part of TriageMQ needs: what was found, and what to do if that is not enough."""

    needs: str
    serves: str
    found: str
    fix: str = ""

    @property
    def fine(self) -> bool:
        return not self.fix


def doctor(json: options.Json = False) -> None:
    """Say what this machine can and cannot do, and the command that fixes it."""
    findings = [*(found for check in CHECKS if (found := _found(check)) is not None), *_kernel()]
    rows = [asdict(each) | {"fine": each.fine} for each in findings]
    if json:
        terminal.print_json({"fine": all(each.fine for each in findings), "findings": rows})
        return
    terminal.print_table(
        "this machine", {"fine": "", "needs": "needs", "serves": "for", "found": "found"}, rows
    )
    missing = [each for each in findings if not each.fine]
    for fix in dict.fromkeys(each.fix for each in missing):
        # Below the table, and in one piece: it is to be copied.
        needs = ", ".join(each.needs for each in missing if each.fix == fix)
        terminal.screen().print(f"for {needs}: {fix}", soft_wrap=True)


def _found(check: Callable[[], Finding]) -> Finding | None:
    """None where packages that the check needs are missing; they are among the findings."""
    try:
        return check()
    except ModuleNotFoundError:
        return None


def _python() -> Finding:
    fix = "" if sys.version_info >= (3, 11) else "install Python 3.11"
    return Finding("Python 3.11", "everything", platform.python_version(), fix)


def _packages(group: str, serves: str, names: tuple[str, ...]) -> Callable[[], Finding]:
    def check() -> Finding:
        found, missing = [], []
        for name in names:
            try:
                found.append(f"{name} {version(name)}")
            except PackageNotFoundError:
                missing.append(name)
        if missing:
            remedy = MissingDependencyError.remedy(group)
            return Finding(f"triagemq[{group}]", serves, f"missing: {', '.join(missing)}", remedy)
        return Finding(f"triagemq[{group}]", serves, ", ".join(found))

    return check


def _java() -> Finding:
    from triagemq.errors import PipelineError
    from triagemq.pipeline.session import find_java

    try:
        java = find_java()
    except PipelineError:
        return Finding("Java 17", "the Spark pipeline", "none", MissingDependencyError.remedy("pipeline"))
    return Finding("Java 17", "the Spark pipeline", str(java))


def _kernel() -> list[Finding]:
    """What the kernel lets this user do, found by doing it."""
    try:
        from triagemq.network.linux import capabilities
    except ModuleNotFoundError:
        return []  # the packages that it needs are among the findings
    able = capabilities()
    fix = (
        "run it as root, for example with sudo"
        if os.geteuid() or able["namespaces"]
        else "use another kernel"
    )
    planes = "the linux and openflow data planes"
    return [
        Finding(needs, serves, problem or "works", fix if problem else "")
        for needs, serves, problem in (
            ("network namespaces", "triage emulate", able["namespaces"]),
            ("kernel queues", planes, able["queues"]),
            ("kernel queues with eBPF", planes, able["classifier"]),
        )
    ]


def _open_vswitch() -> Finding:
    from triagemq.lab.box import require_open_vswitch

    found, fix = find_program("ovs-vswitchd") or "", ""
    try:
        require_open_vswitch()
    except NetworkError as error:
        found, _, fix = str(error).partition("; install it with: ")
    return Finding("Open vSwitch", "the openflow data plane", found, fix)


def _program(name: str, package: str, serves: str) -> Callable[[], Finding]:
    def check() -> Finding:
        place = find_program(name)
        return Finding(name, serves, place or "none", "" if place else f"apt-get install {package}")

    return check


CHECKS: tuple[Callable[[], Finding], ...] = (
    _python,
    _packages(
        "coordinator", "plans, forecasts, simulation", ("numpy", "scipy", "numba", "pydantic", "pyarrow")
    ),
    _packages("dtls", "encrypted MQTT-SN (mqttsns://)", ("pyopenssl",)),
    _packages("pipeline", "the Spark pipeline", ("pyspark", "pandas")),
    _packages("lab", "plots and reports", ("matplotlib", "plotly")),
    _java,
    _program("mosquitto", "mosquitto", "a broker (without it an embedded one is used)"),
    _open_vswitch,
    _program("tshark", "tshark", "tests of the wire format"),
)

network = typer.Typer(help="The network of this machine.", no_args_is_help=True)


@network.callback()
def _network() -> None:
    """The network of this machine."""


@network.command()
def restore(
    everything: Annotated[
        bool, typer.Option("--all", help="Also what belongs to runs that are still going on.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Remove the namespaces, interfaces, queues and processes that killed runs left behind."""
    from triagemq.lab.box.restore import restore as undo
    from triagemq.network.linux.port import restore_queues

    queues = restore_queues()
    done = undo(everything=everything)
    removed = [*(f"interface {name}: queues removed" for name in queues.removed), *done.removed]
    failed = [*(f"interface {each}" for each in queues.failed), *done.failed]
    if everything:
        failed += [f"interface {name}: a running process uses its queues" for name in queues.in_use]
    in_use = done.in_use + (0 if everything else len(queues.in_use))
    if json:
        terminal.print_json({"removed": removed, "failed": failed, "in_use": in_use})
    else:
        for line in removed:
            typer.echo(f"removed {line}")
        if in_use:
            typer.echo(f"left alone: {in_use} things of runs that are still going on (--all takes them, too)")
        if not (removed or failed or in_use):
            typer.echo("nothing was left behind")
    if failed:
        raise NetworkError(f"could not be undone: {'; '.join(failed)}")
