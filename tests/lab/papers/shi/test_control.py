"""Shi et al. in simulation with control: what is claimed of adjustment and of requirements holds, at quick scale."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from triagemq.lab.papers import reproduce, write_files


@pytest.mark.parametrize(
    ("figure", "options"),
    [
        ("6", {"seconds": 2.0}),
        ("7", {"seconds": 15.0, "seeds": 2}),
        ("8", {"seconds": 10.0}),
        ("9", {"seconds": 10.0}),
        ("10", {"seconds": 10.0}),
        ("12", {"seconds": 2.0}),
        ("13", {"seconds": 8.0}),
        ("14", {"seconds": 12.0}),
    ],
)
def test_what_is_claimed_holds_and_leaves_files(
    figure: str, options: dict[str, float], tmp_path: Path
) -> None:
    made = reproduce("shi", figure, quick=True, **options)
    assert made.holds, [claim for claim in made.findings.claims if not claim.holds]
    json.dumps(made.as_json(), allow_nan=False)
    if figure in {"6", "9"}:
        assert write_files(tmp_path, made.name, made.title, made.findings).png.stat().st_size > 1_000
