"""`triage` as processes that need not load everything again: each is forked from one that has.

To load planners and compiled kernels takes a command longer than most of what it is asked for. What it finds, words,
folder, variables and files, and how it ends, is that of a process of its own. Whether commands load what they need is
seen elsewhere: the examples of the documentation, and all that starts `TRIAGE` itself, begin with nothing.
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "building-fire.yaml"


def run_forked(
    arguments: tuple[str, ...], folder: Path, environment: Mapping[str, str], seconds: float
) -> subprocess.CompletedProcess[str]:
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.NamedTemporaryFile() as output, tempfile.NamedTemporaryFile() as errors:
        order = [arguments, str(folder), dict(environment), output.name, errors.name]
        server.stdin.write(json.dumps(order) + "\n")
        server.stdin.flush()
        ended, _, _ = select.select([server.stdout], [], [], seconds)
        assert ended, f"still running after {seconds} s: triage {' '.join(arguments)}"
        code = int(server.stdout.readline())
        return subprocess.CompletedProcess(
            arguments, code, Path(output.name).read_text("utf-8"), Path(errors.name).read_text("utf-8")
        )


@functools.cache
def _server() -> subprocess.Popen[str]:
    """One a worker, until that ends."""
    server = subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(server.communicate)
    return server


def _serve() -> None:
    from triagemq.cli import app, main
    from triagemq.forecast import forecast  # noqa: F401
    from triagemq.plan import make_plan
    from triagemq.scenario import load
    from triagemq.simulate import simulate  # noqa: F401

    app.app  # noqa: B018
    make_plan(load(EXAMPLE))
    gc.freeze()  # else each child would go through all of it when it ends
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            arguments, folder, environment, *printed = json.loads(line)
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(environment)
            for number, name in enumerate((os.devnull, *printed)):
                os.dup2(os.open(name, os.O_RDWR), number)
            sys.argv = ["triage", *arguments]
            main()
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    _serve()
