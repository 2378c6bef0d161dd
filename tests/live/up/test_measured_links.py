"""`triage up` over an interface that gets slower, and a link behind it that loses packets: noticed, said, and over."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.live.machine import TRIAGE, Machine, machine, until
from tests.live.up.test_existing_interface import GATEWAY, wire

from triagemq.lab.box.losing import attach_at_arrival
from triagemq.network.linux.bpf import ArrayMap, compiled_program, load_program
from triagemq.network.linux.netlink import Netlink, interface_index

pytestmark = [pytest.mark.needs_root("it makes namespaces of the network"), pytest.mark.slow]

STATED_BPS = 100_000
SUBSCRIBERS, RATE = 3, 40.0
"""Forty events a second of some 150 bytes for each of three: a little more than the port takes."""

_LOSING = Path(__file__).with_name("losing_datagrams.o")

_GET = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=30).read().decode())"


class Site:
    """The exchange, the interface eth1 of its machine, and a crew at the other end."""

    def __init__(self, alone: Machine, folder: Path) -> None:
        self._alone, self._folder = alone, folder
        wire(alone, folder)
        coordinator = ("--coordinator", f"http://{GATEWAY}:8080", "--timeout", "60")
        self._start(
            *("up", "--dataplane", "linux", "--interface", "port=eth1", "--bandwidth", str(STATED_BPS)),
            *("--gateway", f"{GATEWAY}:10000", "--rest", f"{GATEWAY}:8080", "--insecure"),
            *("--state", "state", "--json"),
        ).ready()
        self._start("pub", "-t", "smoke", "-r", str(RATE), "-s", "100", *coordinator)
        for _ in range(SUBSCRIBERS):
            self._start("sub", "-t", "smoke", "-u", "log:10", *coordinator, crew=True)
        until(lambda: self.port()["measured_error_rate"] is not None)
        until(lambda: self.port()["measured_bandwidth_bps"] is not None)

    def run(self, words: str) -> None:
        done = self._alone.run(*words.split(), folder=self._folder)
        assert done.returncode == 0, (words, done.stderr)

    @contextmanager
    def losing(self, percent: int) -> Iterator[None]:
        """Of the datagrams that come to the crew so many are lost."""
        with closing(ArrayMap(8, 1)) as share:
            program = load_program(compiled_program(_LOSING, "tc/lose", {"share": share}))
            with closing(Netlink(str(self._alone.root / "run/netns/crew"))) as crew:
                attach_at_arrival(crew, interface_index(crew, "eth0"), program)
            os.close(program)
            share.set(0, ((percent << 32) // 100).to_bytes(8, sys.byteorder))
            try:
                yield
            finally:
                share.set(0, bytes(8))

    def port(self) -> dict[str, Any]:
        (found,) = self._get("/v1/ports")
        return dict(found)

    def said(self, kind: str) -> list[dict[str, Any]]:
        return [row for row in self._get("/v1/decisions?limit=1000")["decisions"] if row["kind"] == kind]

    def seconds_until(self, what: Callable[[dict[str, Any]], bool]) -> float:
        begun = time.monotonic()
        until(lambda: what(self.port()))
        return time.monotonic() - begun

    def _start(self, *words: str, crew: bool = False) -> Any:
        # Nobody reads what subscribers print.
        inside = ("ip", "netns", "exec", "crew", "sh", "-c", 'exec "$0" "$@" > /dev/null') if crew else ()
        return self._alone.start(*inside, TRIAGE, *words, folder=self._folder)

    def _get(self, path: str) -> Any:
        done = self._alone.run(
            sys.executable, "-c", _GET, f"http://{GATEWAY}:8080{path}", folder=self._folder
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with machine() as alone:
        yield Site(alone, tmp_path_factory.mktemp("site"))


@pytest.mark.timeout(400)
def test_an_interface_that_has_half_is_noticed_in_half_a_minute_and_when_it_has_all_again(site: Site) -> None:
    generation = site.port()["generation"]
    site.run(f"tc class change dev eth1 parent 7471: classid 7471:1 htb rate {STATED_BPS // 2}")
    seconds = site.seconds_until(lambda port: port["planned_bandwidth_bps"] < 0.7 * STATED_BPS)
    print(f"half of the bandwidth was noticed after {seconds:.0f} s")
    assert seconds < 40
    port = site.port()
    assert port["planned_bandwidth_bps"] == pytest.approx(STATED_BPS / 2, rel=0.15)
    assert port["bandwidth_bps"] == STATED_BPS
    (said,) = site.said("bandwidth_measured")
    assert (said["subject"], said["before"]) == ("port", "1e+05 bit/s")
    assert "and was busy" in said["reason"]
    until(lambda: site.port()["generation"] > generation)
    site.run(f"tc class change dev eth1 parent 7471: classid 7471:1 htb rate {STATED_BPS}")
    seconds = site.seconds_until(lambda port: port["planned_bandwidth_bps"] > 0.8 * STATED_BPS)
    print(f"the whole bandwidth was noticed after {seconds:.0f} s")
    assert seconds < 90
    assert len(site.said("bandwidth_measured")) >= 2


@pytest.mark.timeout(400)
def test_a_link_that_loses_a_quarter_is_noticed_in_half_a_minute_and_when_it_loses_nothing_again(
    site: Site,
) -> None:
    with site.losing(25):
        seconds = site.seconds_until(lambda port: port["planned_error_rate"] > 0.15)
        print(f"a quarter lost was noticed after {seconds:.0f} s")
        assert seconds < 45
        said = site.said("error_rate_measured")
        assert "its subscribers report" in said[0]["reason"]
    seconds = site.seconds_until(lambda port: port["planned_error_rate"] < 0.05)
    print(f"its end was noticed after {seconds:.0f} s")
    assert seconds < 60
