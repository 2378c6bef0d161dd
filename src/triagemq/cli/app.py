"""All commands of `triage`, as one Typer application."""

from __future__ import annotations

import typer

from triagemq import __version__
from triagemq.cli import (
    check,
    demo,
    doctor,
    emulate,
    forecast,
    gateway,
    generate,
    network,
    pipeline,
    plan,
    publish,
    reproduce,
    simulate,
    subscribe,
    sweep,
    token,
    up,
    validate,
)

app = typer.Typer(
    name="triage",
    help="Decides, when a network cannot carry everything, which IoT events go first and which not at all.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("check")(check.check)
app.add_typer(generate.app, name="generate")
app.command("plan")(plan.plan)
app.command("forecast")(forecast.forecast)
app.command("simulate")(simulate.simulate)
app.command("validate")(validate.validate)
app.command("reproduce")(reproduce.reproduce)
app.command("sweep")(sweep.sweep)
app.add_typer(pipeline.app, name="pipeline")
app.command("up")(up.up)
app.command("pub")(publish.pub)
app.command("sub")(subscribe.sub)
app.add_typer(token.app, name="token")
app.command("emulate")(emulate.emulate)
app.add_typer(network.app, name="network")
app.command("gateway")(gateway.gateway)
app.command("demo")(demo.demo)
app.command("doctor")(doctor.doctor)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"triage {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
) -> None:
    """Options of every command."""
