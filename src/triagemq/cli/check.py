"""`triage check FILE`: is this scenario right?"""

from __future__ import annotations

from dataclasses import asdict

import typer

from triagemq.cli.options import File, Json, print_json


def check(file: File, json: Json = False) -> None:
    """Name every mistake in a scenario: file, line, field and the fix. Exit code 2 if there is one."""
    from triagemq.errors import ScenarioError
    from triagemq.scenario import check as check_scenario
    from triagemq.scenario import load

    problems = check_scenario(file)
    if json:
        print_json(
            {"file": str(file), "right": not problems, "problems": [asdict(each) for each in problems]}
        )
    else:
        for problem in problems:
            typer.echo(str(problem), err=True)
    if problems:
        raise typer.Exit(ScenarioError.exit_code)
    if not json:
        scenario = load(file)
        typer.echo(
            f"{file}: right. {len(scenario.publishers)} publishers with {len(scenario.publications)} publications, "
            f"{len(scenario.topics)} topics, {len(scenario.subscribers)} subscribers with "
            f"{len(scenario.subscriptions)} subscriptions on {len(scenario.ports)} ports."
        )
