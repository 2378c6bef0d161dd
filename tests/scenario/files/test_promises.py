"""What promises need of a file, and switches that are built as their models say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from triagemq.errors import PlanError, ScenarioError
from triagemq.plan import make_plan
from triagemq.scenario import Discipline, LimiterKind, check, dumps, load, loads, save
from triagemq.scenario.files.document import BuiltEntry
from triagemq.scenario.files.models import figures, known_models

WARD = """\
name: Ward
overhead_bytes: 66
planning: {priority_classes: 8}
brokers: {hall: }
switches:
  bed: {model: pica8-p3290}
  desk: {model: gigabit, multiplexing_seconds: 4 us}
ports:
  monitor: {switch: desk, bandwidth_bps: 1 Gbit/s}
  spare: {switch: desk, bandwidth_bps: 1 Gbit/s}
  over: {switch: bed, bandwidth_bps: 1 Gbit/s, to: desk}
  back: {switch: desk, bandwidth_bps: 1 Gbit/s, to: bed}
publishers:
  ecg:
    access: bed
    access_bps: 1 Gbit/s
    publishes:
      pulse: {min_separation_seconds: 0.01, max_separation_seconds: 0.1, size_bytes: 900, max_size_bytes: 10000}
subscribers:
  nurse:
    port: monitor
    subscribes:
      pulse: {max_latency_seconds: 0.008, max_separation_seconds: 0.5, guaranteed: true}
"""
PULSE = "publishers.ecg.publishes.pulse"
WANTED = "subscribers.nurse.subscribes.pulse"


def problem(text: str) -> tuple[int | None, str, str, str]:
    """The only problem of a text: line, field, what, fix."""
    with pytest.raises(ScenarioError) as caught:
        loads(text)
    (found,) = caught.value.problems
    return found.line, found.field, found.what, found.fix


def test_what_is_stated_for_promises_is_in_the_scenario() -> None:
    scenario = loads(WARD)
    assert scenario.subscriptions.guaranteed.tolist() == [1]
    assert scenario.subscriptions.utility_weight.tolist() == [0]
    assert scenario.publications.max_size_bytes.tolist() == [10_000]
    assert scenario.publishers.access_switch.tolist() == [0]
    assert scenario.publishers.access_bps.tolist() == [1e9]
    assert scenario.ports.to_switch.tolist() == [0, -1, 1, -1]
    assert (scenario.ports.discipline == Discipline.PRIORITY).all()
    assert scenario.ports.queues.tolist() == [8, 8, 8, 8]
    assert scenario.switches.model == ("pica8-p3290", "gigabit")
    assert scenario.switches.multiplexing_seconds.tolist() == [5e-6, 4e-6]
    assert scenario.switches.packet_bytes.tolist() == [1538, 1538]


def test_promises_survive_both_forms_of_a_scenario(tmp_path: Path) -> None:
    scenario = loads(WARD)
    fair = replace(scenario.ports, discipline=np.array([0, 0, 0, 1], dtype=np.int8))
    for each in (scenario, scenario.with_tables(ports=fair)):
        again = loads(dumps(each))
        assert again.fingerprint == each.fingerprint
        assert dumps(again) == dumps(each)
        save(each, tmp_path / "ward")
        assert load(tmp_path / "ward").fingerprint == each.fingerprint
    assert scenario.fingerprint != scenario.with_tables(ports=fair).fingerprint


def test_a_known_model_is_written_by_name_and_another_switch_in_figures() -> None:
    text = dumps(loads(WARD))
    assert "bed: {model: pica8-p3290}" in text
    assert "desk: {multiplexing_seconds: 4.0e-06, packet_bytes: 1538, rate_limiters: 128," in text


def test_scenarios_that_ask_for_no_promise_have_the_fingerprint_they_always_had() -> None:
    scenario = loads("""\
brokers: {hall: }
switches: {core: }
ports: {radio: {switch: core, bandwidth_bps: 320000}}
publishers: {sensor: {publishes: {smoke: {rate_per_second: 2, size_bytes: 60}}}}
subscribers: {commander: {port: radio, subscribes: {smoke: log:10}}}
""")
    assert scenario.fingerprint == "90aa4b9dd45ef35852683a81dffec3d0"


@pytest.mark.parametrize(
    ("old", "new", "field", "fix"),
    [
        ("max_latency_seconds: 0.008, ", "", f"{WANTED}.max_latency_seconds", "max_latency_seconds"),
        ("min_separation_seconds: 0.01, ", "min_separation_seconds: 0, ", f"{PULSE}.min_separation_seconds", "0"),
        ("max_size_bytes: 10000", "max_size_bytes: 800", f"{PULSE}.max_size_bytes", "900"),
        ("access: bed", "access: bad", "publishers.ecg.access", "bed"),
        ("    access: bed\n", "", "publishers.ecg.access_bps", "access"),
        ("to: desk}", "to: bed}", "ports.over.to", "another switch"),
        ("to: desk}", "to: disk}", "ports.over.to", "desk"),
        ("port: monitor", "port: over", "subscribers.nurse.port", "desk"),
        ("model: gigabit", "model: gigabyte", "switches.desk.model", "gigabit, linux-htb, open-vswitch, pica8-p3290"),
    ],
)  # fmt: skip
def test_an_entry_that_does_not_fit_its_switch_is_named_with_what_to_write(
    old: str, new: str, field: str, fix: str
) -> None:
    assert WARD.count(old) == 1
    line, found, _, advice = problem(WARD.replace(old, new))
    assert found == field
    assert fix in advice
    assert line is not None


@pytest.mark.parametrize(
    ("old", "new", "missing"),
    [
        ("min_separation_seconds: 0.01, ", "rate_per_second: 50, ", "min_separation_seconds"),
        (", max_size_bytes: 10000", "", "max_size_bytes"),
        ("max_separation_seconds: 0.1", "max_separation_seconds: 0.7", "max_separation_seconds"),
        ("    access: bed\n    access_bps: 1 Gbit/s\n", "", "access"),
        (", to: desk}", "}", "path"),
        ("to: desk", "to: desk, discipline: fair", "path"),
        ("monitor: {switch: desk,", "monitor: {switch: desk, discipline: fair,", "path"),
        ("model: pica8-p3290", "packet_bytes: 60", "overhead"),
    ],
)
def test_a_guarantee_that_cannot_be_given_is_refused_by_the_plan_and_not_by_the_file(
    old: str, new: str, missing: str
) -> None:
    assert WARD.count(old) == 1
    plan = make_plan(loads(WARD.replace(old, new)))
    assert not plan.promises.admitted.any()
    assert any(each.kind == "refused" and missing in each.reason for each in plan.decisions)


def test_a_plan_has_no_more_classes_than_the_queues_of_a_model() -> None:
    with pytest.raises(PlanError, match="ask for at most 8 classes"):
        make_plan(loads(WARD.replace("priority_classes: 8", "priority_classes: 9")))


def test_every_model_that_comes_with_triagemq_says_where_its_figures_are_from() -> None:
    assert list(known_models()) == ["gigabit", "linux-htb", "open-vswitch", "pica8-p3290"]
    for name, model in known_models().items():
        assert model.description, name
        vouched = "\n".join(model.sources)
        for key in ("ports", "queues", *BuiltEntry.model_fields):
            stated = getattr(model, key) is not None
            assert not stated or key in model.assumed or f"{key}:" in vouched, (name, key)


def test_own_models_stand_beside_the_scenario_and_come_first(tmp_path: Path) -> None:
    (tmp_path / "ward.yaml").write_text(WARD.replace("gigabit", "my-switch"))
    (tmp_path / "my-switch.yaml").write_text(
        "queues: 12\nrules: 77\nlimiter: bucket\nlimiter_step_seconds: 1 ms\n"
    )
    (tmp_path / "pica8-p3290.yaml").write_text("queues: 8\nlimiter_precision: 3 %\n")
    scenario = load(tmp_path / "ward.yaml")
    assert scenario.switches.model == ("pica8-p3290", "my-switch")
    assert scenario.switches.rules.tolist() == [np.inf, 77]
    assert scenario.switches.limiter.tolist() == [LimiterKind.WINDOW, LimiterKind.BUCKET]
    assert scenario.switches.limiter_step_seconds.tolist() == [0, 0.001]
    assert scenario.switches.limiter_precision.tolist() == [0.03, 0]
    assert scenario.ports.queues.tolist() == [12, 12, 8, 12]
    # Where it goes, its own models do not: it is written in figures.
    assert loads(dumps(scenario)).fingerprint == scenario.fingerprint
    save(scenario, tmp_path / "elsewhere")
    assert load(tmp_path / "elsewhere").fingerprint == scenario.fingerprint


def test_mistakes_in_an_own_model_are_named_with_its_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "ward.yaml").write_text(WARD.replace("gigabit", "my-switch"))
    own = tmp_path / "my-switch.yaml"
    own.write_text("queues: 8\nports:\n  - {count: 0, bandwidth_bps: 1 Gbit/s}\nrulez: 5\nassumed: [rules]\n")
    found = check(tmp_path / "ward.yaml")
    assert {each.file for each in found} == {str(own)}
    assert [(each.line, each.field) for each in found] == [(4, "rulez")]
    assert "rules" in found[0].fix
    own.write_text(own.read_text().replace("rulez: 5\n", ""))
    assert [(each.line, each.field) for each in check(tmp_path / "ward.yaml")] == [(3, "ports.1.count")]
    for text in ("- a\n", "a: [\n", ""):
        own.write_text(text)
        (one,) = check(tmp_path / "ward.yaml")
        assert one.file == str(own)


def test_a_model_outside_of_the_scenarios_folder_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "my-switch.yaml").write_text("queues: 8\n")
    (tmp_path / "inner" / "ward.yaml").write_text(WARD.replace("gigabit", "../my-switch"))
    (one,) = check(tmp_path / "inner" / "ward.yaml")
    assert one.field == "switches.desk.model"


def test_figures_of_a_model_are_complete() -> None:
    assert figures(known_models()["linux-htb"])["rules"] == np.inf
