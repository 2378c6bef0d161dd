"""What makes Java start quickly: written by the first command of a kind, used by the next, never half of a file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from triagemq.pipeline.java import CdsCache, Java, cache_directory

# Writes what a real one would, into the file that it is told to.
FAKE = """#!/bin/sh
for argument do case "$argument" in -XX:SharedArchiveFile=*) echo classes > "${argument#*=}" ;; esac; done
"""


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Java:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    program = tmp_path / "jdk" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(FAKE)
    program.chmod(0o755)
    return Java(tmp_path / "jdk", "25.0.2", "JAVA_HOME")


def written(options: list[str]) -> Path:
    """What Java would do at its end, if it was asked to."""
    (name,) = [text.partition("=")[2] for text in options if text.startswith("-XX:ArchiveClassesAtExit=")]
    Path(name).write_text("more classes")
    return Path(name)


def test_the_first_command_writes_it_and_the_next_uses_it_on_top_of_javas_own(java: Java) -> None:
    first = CdsCache(java, "tables")
    unfinished = written(first.java_options())
    first.close(keep=True)
    assert not unfinished.exists()
    (used, *quiet) = CdsCache(java, "tables").java_options()
    base, top = used.removeprefix("-XX:SharedArchiveFile=").split(":")
    assert Path(base).read_text() == "classes\n"
    assert Path(top).read_text() == "more classes"
    assert all("ArchiveClassesAtExit" not in option for option in quiet)
    assert written(CdsCache(java, "sweep").java_options()), "another kind needs other classes"


def test_a_java_that_brings_its_own_needs_no_base(java: Java) -> None:
    (java.home / "lib" / "server").mkdir(parents=True)
    (java.home / "lib" / "server" / "classes.jsa").write_text("its own")
    assert not any("SharedArchiveFile" in option for option in CdsCache(java, "tables").java_options())


def test_what_a_failed_or_killed_command_wrote_is_not_used(java: Java) -> None:
    failed = CdsCache(java, "tables")
    written(failed.java_options())
    failed.close(keep=False)
    killed = cache_directory() / f"classes-java25-tables.jsa.{2**22 + 1}"
    running = cache_directory() / f"classes-java25-tables.jsa.{os.getpid()}"
    for left in (killed, running):
        left.write_text("half of it")
    assert written(CdsCache(java, "tables").java_options())
    assert not killed.exists()
    assert running.exists()


def test_a_java_that_cannot_make_a_base_works_without(java: Java) -> None:
    (java.home / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    assert not any("SharedArchiveFile" in option for option in CdsCache(java, "tables").java_options())
