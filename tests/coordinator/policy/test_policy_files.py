"""A policy file is read as it is meant, and what is wrong in it is named with its line, its field and the fix."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from triagemq.cli.app import application
from triagemq.coordinator.policy.files import parse_policy
from triagemq.coordinator.policy.record import ClientIdentity
from triagemq.errors import ScenarioError

POLICY = """\
roles:
  command:  {budget: 400, rank: 0}
  crew:     {budget: 200, rank: 1, may_reserve: true}
  visitor:  {budget: 5, rank: 9, may: ["lobby/#"]}
clients:
  - {id: "ff-*", role: crew, port: crew-radio}
  - {id: "panel-*", address: 192.0.2.0/24, user: panel, role: command,
     subscriptions: {"building/+/smoke": {utility: log:14, max_rate_per_second: 2, min_share: 0.2},
                     "#": log:0.5;newest_only}}
  - {id: "*", role: visitor}
phases:
  search:      {}
  suppression: {"building/water-pressure": 4, "+/+/smoke": 0.5}
"""


def test_a_policy_is_read_as_it_is_meant() -> None:
    policy = parse_policy(POLICY)
    assert (policy.roles["visitor"].budget, policy.roles["visitor"].may) == (5.0, ("lobby/#",))
    smoke, rest = policy.clients[1].subscriptions
    assert (smoke.utility.weight, smoke.max_rate_per_second, smoke.min_share) == (14.0, 2.0, 0.2)
    assert (rest.topic, rest.utility.weight, rest.newest_only) == ("#", 0.5, True)
    assert policy.phases == {
        "search": {},
        "suppression": {"building/water-pressure": 4.0, "+/+/smoke": 0.5},
    }


@pytest.mark.parametrize(
    ("client", "role"),
    [
        (ClientIdentity("ff-7", "198.51.100.1"), "crew"),
        (ClientIdentity("panel-3", "192.0.2.9", "panel"), "command"),
        (ClientIdentity("panel-3", "::ffff:192.0.2.9", "panel"), "command"),
        (ClientIdentity("panel-3", "192.0.2.9"), "visitor"),
        (ClientIdentity("panel-3", "192.0.3.9", "panel"), "visitor"),
        (ClientIdentity("panel-3", "no address", "panel"), "visitor"),
        (ClientIdentity("panel-3", "", "", "crew"), "crew"),
        (ClientIdentity("ff-7", "", "", "gone by now"), "crew"),
    ],
)
def test_the_first_entry_that_fits_gives_the_role_and_a_token_more(client: ClientIdentity, role: str) -> None:
    assert parse_policy(POLICY).role_of(client)[0].name == role


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        (
            "budget: 400",
            "budgt: 400",
            "p.yaml:2: roles.command.budgt: is not a known key; did you mean budget?",
        ),
        ("budget: 400", "budget: .nan", "p.yaml:2: roles.command.budget: is .nan; write a number from 0"),
        ("budget: 400", "budget: .inf", "p.yaml:2: roles.command.budget: is .inf; write a number from 0"),
        ("rank: 9", "rank: 0.5", "p.yaml:4: roles.visitor.rank: is 0.5; write a whole number"),
        ('["lobby/#"]', '["lobby#"]', "p.yaml:4: roles.visitor.may.1: has + or # next to other characters"),
        (
            "role: crew, port",
            "role: crw, port",
            "p.yaml:6: clients.1.role: there is no role 'crw'; did you mean",
        ),
        (
            "192.0.2.0/24",
            "192.0.2.0/99",
            "p.yaml:7: clients.2.address: is 192.0.2.0/99, no address or network",
        ),
        (
            "log:14",
            "log:many",
            "p.yaml:8: clients.2.subscriptions.building/+/smoke.utility: 'log:many' is not",
        ),
        (
            "min_share: 0.2",
            "min_share: 7",
            "p.yaml:8: clients.2.subscriptions.building/+/smoke: min_share: must",
        ),
        (";newest_only", ";newest", "p.yaml:9: clients.2.subscriptions.#: terms: 'newest' is not a utility"),
        ('  - {id: "*", role: visitor}\n', "", "p.yaml:5: clients: has no entry for every other client"),
        ("  search: ", "  usual: ", "p.yaml:12: phases.usual: is the phase without factors"),
        ('smoke": 0.5', 'smoke": -1', "p.yaml:13: phases.suppression.+/+/smoke: is -1, not a factor"),
        ("roles:", "rules:", "p.yaml:1: rules: is not a known key; did you mean roles?"),
    ],
)
def test_a_mistake_is_named_with_its_line_and_its_fix(before: str, after: str, problem: str) -> None:
    assert before in POLICY
    with pytest.raises(ScenarioError) as raised:
        parse_policy(POLICY.replace(before, after), "p.yaml")
    assert any(str(each).startswith(problem) for each in raised.value.problems), raised.value.problems


def test_check_tells_policies_from_scenarios(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY)
    command = application("check", "pub")
    found = CliRunner().invoke(command, ["check", str(file)])
    assert (found.exit_code, found.output) == (
        0,
        f"{file}: valid. 3 roles, 3 entries of clients, 2 phases.\n",
    )
    file.write_text(POLICY.replace("budget: 5", "budget: five"))
    found = CliRunner().invoke(command, ["check", str(file)])
    assert found.exit_code == 2
    assert f"{file}:4: roles.visitor.budget: is 'five'; write a number from 0, such as 200" in found.output
