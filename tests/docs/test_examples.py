"""Every example in README.md and docs/ is executed as a reader would: in order, in a plain shell, in a fresh checkout.

The page shows the output of a command; `...` stands only for parts of a line that differ from run to run. A block
is a file (its name follows the language), commands with their output (`console`), or a Python session (`pycon`). A
block that is not executed has the reason behind its language (`by hand: REASON`), and is listed here.
"""

from __future__ import annotations

import doctest
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.docs.terminal import ROOT, Terminal, fresh_checkout
from typer.core import TyperGroup
from typer.main import get_command

from triagemq.cli.app import app

GUIDES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("tutorial/*")),
    *sorted((ROOT / "docs").glob("guides/*")),
]
REFERENCES = sorted({*(ROOT / "docs").rglob("*.md")} - {*GUIDES})
NEEDS_ROOT = {
    "README.md": "it runs Mosquitto, which `make test` installs for root",
    "mqtt-clients.md": "it runs Mosquitto, which `make test` installs for root",
    "own-broker.md": "it runs Mosquitto, which `make test` installs for root",
    "real-network.md": "it builds a network",
}
CERTIFICATE = (
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 365 "
    '-subj "/CN=hall" \\\n    -addext "subjectAltName=IP:192.0.2.1" '
)
NOT_EXECUTED = {
    "README.md": {
        "make install": "downloads some 700 MB",
        "make demo": "takes minutes",
        "make test": "takes minutes",
    },
    "docs/tutorial/building.md": {
        "make install": "downloads some 700 MB",
        "triage up examples/building-fire.yaml --for 60 --state site": "runs for a minute",
        "python chief.py": "beside a running exchange",
        'curl -s "http://127.0.0.1:8080/v1/decisions?latest=true&limit=5"': "beside a running exchange",
        "triage pipeline run site/trace --out site/tables": "takes a minute",
        "triage pipeline show site/tables class_performance": "takes a minute",
        "triage pipeline scenario site/tables -o measured.yaml": "takes a minute",
        "triage plan measured.yaml": "takes a minute",
    },
    "docs/guides/exchange.md": {
        "TRIAGE_BROKER=mqtts://USER:PASSWORD@HOST triage up --broker-ca ca.pem": "needs a broker of your own",
    },
    "docs/guides/page.md": {
        "triage up examples/building-fire.yaml": "runs until it is ended",
        'triage token create --state site --role operator --label "shift leader"': "beside a running exchange",
        'triage token create --state site --role viewer --label "wall screen"': "beside a running exchange",
        "triage pipeline run site/trace --out site/tables": "beside a running exchange",
    },
    "docs/guides/deployment.md": {
        **dict.fromkeys(
            (
                "git clone . /opt/triage && make -C /opt/triage install",
                "useradd --system --home-dir /var/lib/triage triage",
                "install -d -m 0750 -g triage /etc/triage",
                CERTIFICATE + "-keyout /etc/triage/key.pem -out /etc/triage/certificate.pem",
                "chgrp triage /etc/triage/key.pem && chmod 0640 /etc/triage/key.pem",
                "cp deploy/triage.service /etc/systemd/system/ && systemctl enable --now triage",
                "runuser -u triage -- /opt/triage/.venv/bin/triage token create --state /var/lib/triage "
                '--role operator --label "shift leader"',
            ),
            "changes the machine",
        ),
        **dict.fromkeys(
            (
                "docker build -f deploy/Containerfile -t triagemq .",
                "docker run -d --name triage -p 8443:8443 -p 10000:10000/udp -v triage:/var/lib/triage "
                "-v /etc/triage:/etc/triage:ro triagemq",
                "docker exec triage triage token create --state /var/lib/triage --role operator "
                '--label "shift leader"',
            ),
            "needs Docker or Podman",
        ),
    },
    "docs/guides/guarantees.md": {
        "triage sub --coordinator http://127.0.0.1:8080 --topic pulse --port monitor --guaranteed "
        f"--max-latency {time}": "beside a running exchange, whose address differs"
        for time in ("20ms", "1ms")
    },
    "docs/guides/many-brokers.md": {
        "triage up examples/campus.yaml --for 60": "takes a minute",
        "triage up --state hall --access --rest 0.0.0.0:8443 --gateway 0.0.0.0:10000 --dtls \\\n"
        "    --tls-certificate hall.pem --tls-key hall.key --broker mqtt://192.0.2.1:1883": "needs several machines",
        "triage token create --state hall --role gateway --name labs": "needs several machines",
        "TRIAGE_TOKEN=triage_... triage gateway --join https://192.0.2.1:8443 --name labs --ca hall.pem --state labs "
        "\\\n    --broker mqtt://192.0.2.2:1883 --listen 192.0.2.2:10000 --dtls": "needs several machines",
        "curl -X POST http://127.0.0.1:8080/v1/gateways/labs/clients -H 'Content-Type: application/json' "
        """-d '{"subscribers": ["ff-7"]}'""": "beside a running exchange",
        "curl -X POST http://127.0.0.1:8080/v1/gateways/labs/sent-away -H 'Content-Type: application/json' "
        """-d '{"client_ids": ["meter-7"]}'""": "beside a running exchange",
    },
    "docs/guides/monitoring.md": {"curl -s http://127.0.0.1:8080/v1/health": "beside a running exchange"},
    "docs/guides/pipeline.md": {
        "triage pipeline stream mqtt://user:password@broker/building/# --out rates": "needs a broker of your own",
        "triage pipeline scenario rates -o building.yaml --bandwidth-bps 1000000": "needs a broker of your own",
        "spark-submit --master yarn examples/spark_submit.py pipeline run hdfs:///traces --out hdfs:///tables": (
            "needs a cluster"
        ),
        "triage sweep office.yaml --vary rho=0.5:2.0:0.1 --master spark://head:7077 --out hdfs:///sweeps/office": (
            "needs a cluster"
        ),
    },
    "docs/guides/real-network.md": {
        "triage up --dataplane linux --interface port=eth1 --bandwidth 2e6 --gateway 192.168.1.1:10000 \\\n"
        "    --rest 192.168.1.1:8080 --access --tls-certificate box.pem --tls-key box.key": (
            "needs a network behind a second interface"
        ),
    },
    "docs/guides/real-switch.md": dict.fromkeys(
        (
            "ovs-vsctl set bridge br0 protocols=OpenFlow13 fail_mode=secure "
            "other-config:datapath-id=0000000000000001",
            "ovs-vsctl set-controller br0 tcp:127.0.0.1:6653",
            "triage topics encode --tree building.yaml",
            "triage topics carry 'p2=building/floor1/#' --interface p2=1/p2 --openflow tcp:127.0.0.1:6653",
            "triage sub -t building/floor1/smoke --codes topic-codes.json --type alarm --interface h2",
            "triage pub -t building/floor1/smoke --codes topic-codes.json --type alarm -m fire "
            "--interface h1 --count 3",
        ),
        "needs a switch",
    ),
    "docs/guides/two-machines.md": dict.fromkeys(
        (
            CERTIFICATE + "-keyout hall.key -out hall.pem",
            "triage up --state hall --access --rest 192.0.2.1:8443 --gateway 192.0.2.1:10000 --dtls \\\n"
            "    --tls-certificate hall.pem --tls-key hall.key",
            "triage token create --state hall --role publisher --publish 'building/#' --name 'room-*' --label rooms",
            "triage token create --state hall --role subscriber --subscribe 'building/#' --name 'ff-*' --label crew",
            "export TRIAGE_TOKEN=triage_...",
            "triage sub --coordinator https://192.0.2.1:8443 --ca hall.pem --name ff-7 --topic 'building/+/smoke' "
            "--utility log:10 --count 3",
            "triage pub --coordinator https://192.0.2.1:8443 --ca hall.pem --name room-12 --topic building/3/smoke "
            "--message 0.7 --count 3 --qos 1 --stamp",
        ),
        "needs two machines",
    ),
    "docs/guides/topic-codes.md": dict.fromkeys(
        (
            "triage pub -t building/floor1/smoke --codes topic-codes.json --type alarm -m fire "
            "--interface eth0",
            "triage topics carry 'radio=building/floor1/#' 'cable=building/#@2' --interface radio=eth1 "
            "--interface cable=eth2",
            "triage topics carry 'radio=building/floor1/#' --interface radio=1/eth3 --openflow tcp:127.0.0.1:6653",
        ),
        "needs networks behind its interfaces",
    ),
}
"""The commands of each page that only a reader executes, with the reason."""

BLOCK = re.compile(
    r"^```(?P<kind>\w+)(?: by hand: (?P<by_hand>[^\n]+)| (?P<name>\S+))?\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
COMMAND = re.compile(r"(?:.*\\\n)*.*\n?")
INDENTED_COMMAND = re.compile(r"^ {4}(?:\$ |triage |make |python |pip |\w+=\S+ triage )", re.MULTILINE)
INLINE_COMMAND = re.compile(r"`triage ([^`]+)`")
PROGRESS = re.compile(
    r"^(?:compiling for this machine: .*|.+:(?: \d+ %)? after \d+ s(?:, .*)?)\n", re.MULTILINE
)
"""Progress of long commands (triagemq.compiled, triagemq.progress)."""
LENIENT = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Block:
    kind: str
    name: str | None
    by_hand: str | None
    text: str
    line: int

    def steps(self) -> Iterator[tuple[str, str]]:
        """Commands with their output. A backslash continues a command in the next line."""
        for step in re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]:
            command = COMMAND.match(step)
            assert command is not None
            yield command[0].rstrip("\n"), step[command.end() :]


def blocks(page: Path) -> Iterator[Block]:
    source = page.read_text()
    for match in BLOCK.finditer(source):
        line = source.count("\n", 0, match.start()) + 1
        yield Block(match["kind"], match["name"], match["by_hand"], match["text"], line)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", [*GUIDES, *REFERENCES], ids=name_of)
def test_examples_do_what_the_page_says(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page.name in NEEDS_ROOT and os.geteuid() != 0:
        pytest.skip(f"needs root: {NEEDS_ROOT[page.name]}; run `make test` as root")
    folder = fresh_checkout(tmp_path / "checkout")
    monkeypatch.chdir(folder)
    terminal = Terminal(folder, tmp_path)
    names: dict[str, object] = {"__name__": "example"}
    try:
        if page in REFERENCES:
            terminal.run(". .venv/bin/activate")
        for block in blocks(page):
            where = f"{page.name}:{block.line}"
            if block.by_hand is not None:
                continue
            if block.name is not None:
                (folder / block.name).write_text(block.text)
            elif block.kind == "pycon":
                run_session(block.text, names, where)
            elif block.kind == "console":
                for command, expected in block.steps():
                    run_command(terminal, command, expected, where)
            else:
                assert page in REFERENCES, f"{where}: not executed"
        terminal.wait_until_idle()
    finally:
        terminal.close()


def run_session(text: str, names: dict[str, object], where: str) -> None:
    test = doctest.DocTestParser().get_doctest(text, names, where, where, 0)
    result = doctest.DocTestRunner(optionflags=LENIENT).run(test, clear_globs=False)
    names.update(test.globs)
    assert result.failed == 0, f"{where}: see the differences above"


def run_command(terminal: Terminal, command: str, expected: str, where: str) -> None:
    code, printed = terminal.run(command)
    exit_code = re.search(r"# exit code (\d+)", command)
    assert code == (int(exit_code[1]) if exit_code else 0), f"{where}: {command}\n{printed}"
    printed = PROGRESS.sub("", printed)
    shown, seen = lines(expected), lines(printed)
    matches = len(shown) == len(seen) and all(map(matches_line, shown, seen))
    assert matches, f"{where}: {command}\nexpected:\n{expected}\nprinted:\n{printed}"


def lines(text: str) -> list[str]:
    """Lines without spaces and table rules, which depend on the width of figures."""
    return [re.sub(r"([━─])+", r"\1", " ".join(line.split())) for line in text.splitlines() if line.strip()]


def matches_line(shown: str, seen: str) -> bool:
    """Dots stand for some part of this line, never for more lines."""
    return re.fullmatch(".*".join(map(re.escape, shown.split("..."))), seen) is not None


def test_only_these_commands_are_not_executed() -> None:
    found: dict[str, dict[str, str]] = {}
    for page in [*GUIDES, *REFERENCES]:
        for block in blocks(page):
            for command, _ in block.steps() if block.by_hand else ():
                found.setdefault(name_of(page), {})[command.partition(" #")[0].rstrip()] = block.by_hand
    assert found == NOT_EXECUTED


@pytest.mark.parametrize("page", GUIDES, ids=name_of)
def test_no_command_hides_in_other_text_and_no_output_behind_dots(page: Path) -> None:
    source = page.read_text()
    assert not INDENTED_COMMAND.search(BLOCK.sub("", source)), "a command belongs in a console block"
    for block in blocks(page):
        for command, expected in block.steps():
            assert "..." not in expected.split("\n"), f"{page.name}:{block.line}: {command}"


@pytest.mark.parametrize("page", [*GUIDES, *REFERENCES], ids=name_of)
def test_commands_that_are_mentioned_exist_with_their_options(page: Path) -> None:
    for words in INLINE_COMMAND.findall(BLOCK.sub("", page.read_text())):
        exists_with_its_options(words)


def test_the_commands_of_units_and_container_exist_with_their_options() -> None:
    units = "".join(each.read_text() for each in (ROOT / "deploy").glob("*.service"))
    started = re.findall(r"^ExecStart=\S+/triage (.+)$", units, re.MULTILINE)
    container = (ROOT / "deploy" / "Containerfile").read_text().replace("\\\n", "")
    started += [" ".join(json.loads(each)) for each in re.findall(r"^CMD (.+)$", container, re.MULTILINE)]
    assert len(started) == 3
    for words in started:
        exists_with_its_options(words)


def exists_with_its_options(words: str) -> None:
    command = get_command(app)
    for word in words.split():
        if isinstance(command, TyperGroup) and word in command.commands:
            command = command.commands[word]
    options = {
        option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
    }
    assert {*re.findall(r"(?<!\S)--?[a-z][a-z-]*", words)} <= {*options, "--help"}, f"triage {words}"
