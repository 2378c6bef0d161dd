"""Run as a program: waits for leave, enters a network namespace, and becomes the command.

    launch.py NAMESPACE PARENT GATE COMMAND...

GATE is a file descriptor to read from. One octet is leave to go on; its end means that the starter died before it had
noted this process, which then ends too. Only the standard library: this starts in a few milliseconds.
"""

import ctypes
import os
import signal
import sys

SET_DEATH_SIGNAL = 1
NEW_NETWORK = 0x40000000


def launch(namespace: str, parent: int, gate: int, command: list[str]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent or not os.read(gate, 1):
        sys.exit(1)
    os.close(gate)
    descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    if libc.setns(descriptor, NEW_NETWORK) != 0:
        sys.exit(f"cannot enter {namespace}: {os.strerror(ctypes.get_errno())}")
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"cannot run {command[0]}: {error.strerror}")


if __name__ == "__main__":
    launch(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
