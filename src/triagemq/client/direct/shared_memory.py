"""Messages between processes of one host: who meets whom, and who wakes whom.

Every direct topic has a folder in /dev/shm/triagemq-UID, which only this user may enter:

    w-SESSION.sock, w-SESSION.ring    a publisher, and the ring of its messages
    r-TOKEN.sock                      a subscriber

Datagrams to these sockets say nothing but "look". A publisher lists the subscribers when it starts, and again when one
of them has knocked; it wakes each after every message, the first time with its ring as an open file, and never waits
for any. A subscriber lists the publishers when it starts, and learns of later ones when they wake it. Both bind their
socket before they list, so that one of two always sees the other. Nobody polls: who waits, sleeps in the kernel.

A process that was killed leaves its files. Nobody answers at its socket any more, and whoever notices removes them;
their names are never used again.
"""

from __future__ import annotations

import array
import contextlib
import hashlib
import os
import secrets
import socket
import stat
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from triagemq.client.direct.ring import RingReader, RingWriter
from triagemq.client.direct.wire import DirectMessage
from triagemq.errors import ClientError

_MEMORY = Path("/dev/shm")
_NAMESPACE = Path("/proc/thread-self/ns/net")
_LOOK = b"."
_RETRIES = 20
_GREETING_SECONDS = 1.0
_REMEMBERED = 1000
_MESSAGES_AT_ONCE = 64


def meeting_place(topic: str, address: str) -> Path:
    """The folder of a topic. Emulated hosts are network namespaces, and so a host here is one, too."""
    try:
        host = _NAMESPACE.stat().st_ino
    except OSError:
        host = 0
    name = hashlib.blake2s(f"{topic}\0{address}\0{host}".encode(), digest_size=8).hexdigest()
    return _MEMORY / f"triagemq-{os.geteuid()}" / name


class MemoryWriter:
    """A publisher, as processes of its host see it."""

    def __init__(self, topic: str, address: str, session: int, largest_bytes: int) -> None:
        name = f"w-{session:016x}"
        # Whether each has got the ring.
        self._readers: dict[str, bool] = {}
        self._place = meeting_place(topic, address)
        self._path = self._place / f"{name}.sock"
        with _explained(topic):
            self._socket = _bound(self._path)
            try:
                self._ring = RingWriter(self._place / f"{name}.ring", session, largest_bytes)
            except OSError:
                self._leave()
                raise
        _sweep_all(self._place.parent)
        self._find_readers()
        self._wake()

    @property
    def readers(self) -> int:
        """Processes that are woken by every message."""
        return len(self._readers)

    def write(self, number: int, published_ns: int, payload: bytes) -> None:
        """Without waiting for anybody."""
        self._ring.write(number, published_ns, payload)
        # After the message: who knocks later than this reads after it has knocked, and finds the message.
        if self._was_knocked():
            self._find_readers()
        self._wake()

    def close(self) -> None:
        """What was written can still be read by those who are here, once they have the ring."""
        self._socket.settimeout(_GREETING_SECONDS)
        if not all(self._readers.values()):
            self._wake()
        self._ring.close()
        self._leave()

    def _was_knocked(self) -> bool:
        knocked = False
        with contextlib.suppress(BlockingIOError):
            while True:
                self._socket.recv(1)
                knocked = True
        return knocked

    def _find_readers(self) -> None:
        paths = map(str, self._place.glob("r-*.sock"))
        self._readers = {path: self._readers.get(path, False) for path in paths}

    def _wake(self) -> None:
        someone_has_gone = False
        for reader, has_ring in self._readers.items():
            try:
                if has_ring:
                    self._socket.sendto(_LOOK, reader)
                else:
                    # `socket.send_fds` has an argument for the address, and ignores it.
                    ring = array.array("i", [self._ring.file])
                    self._socket.sendmsg([_LOOK], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, ring)], 0, reader)
                    self._readers[reader] = True
            except (BlockingIOError, TimeoutError):
                # Its socket is full: it looks at everything after the first of these, which is still to come.
                continue
            except OSError:
                someone_has_gone = True
        if someone_has_gone:
            _sweep(self._place)
            self._find_readers()

    def _leave(self) -> None:
        self._socket.close()
        _remove(self._path)


class MemoryReader:
    """A subscriber, as processes of its host see it. It gets what is published from now on.

    `on_publisher` is told the session of each, and the number of its first message that is for this subscriber.
    """

    def __init__(
        self, topic: str, address: str, on_publisher: Callable[[int, int], None] = lambda session, first: None
    ) -> None:
        self._on_publisher = on_publisher
        self._rings: dict[int, RingReader] = {}
        # Publishers whose rings were let go; a second file of one may still be on its way.
        self._ended: deque[int] = deque(maxlen=_REMEMBERED)
        self._overrun_before = 0
        self._place = meeting_place(topic, address)
        self._path = self._place / f"r-{secrets.token_hex(8)}.sock"
        with _explained(topic):
            self._socket = _bound(self._path)
        _sweep_all(self._place.parent)
        for writer in self._place.glob("w-*.sock"):
            # A publisher that has no ring yet has published nothing, and brings it when it has.
            with contextlib.suppress(OSError):
                self._attach(os.open(writer.with_suffix(".ring"), os.O_RDONLY | os.O_CLOEXEC), cursor=None)
            with contextlib.suppress(OSError):
                # Full: so many have knocked that the publisher is about to list us.
                self._socket.sendto(_LOOK, str(writer))
        # Nobody wakes us for what was published between the two.
        self._look_again()

    def fileno(self) -> int:
        """To wait for messages."""
        return self._socket.fileno()

    @property
    def overrun(self) -> int:
        """Messages that came too fast for this process."""
        return self._overrun_before + sum(ring.overrun for ring in self._rings.values())

    def receive(self) -> list[DirectMessage]:
        """What is there; perhaps nothing."""
        try:
            _, files, _, _ = socket.recv_fds(self._socket, 1, 1)
        except OSError:
            return []
        found = self._without_ended() if files else []
        for file in files:
            # Who brings a ring has begun after us: all that was published is for us.
            with contextlib.suppress(OSError):
                self._attach(file, cursor=0)
        for ring in self._rings.values():
            for _ in range(_MESSAGES_AT_ONCE):
                if (message := ring.read()) is None:
                    break
                found.append(message)
            else:
                # A publisher that is faster than we are must not keep us here.
                self._look_again()
        return found

    def close(self) -> None:
        """Publishers notice with their next message."""
        self._socket.close()
        _remove(self._path)
        for ring in self._rings.values():
            ring.close()
        self._rings.clear()

    def _look_again(self) -> None:
        # Full: we shall.
        with contextlib.suppress(BlockingIOError):
            self._socket.sendto(_LOOK, str(self._path))

    def _attach(self, file: int, cursor: int | None) -> None:
        ring = RingReader(file, cursor)
        if ring.session in self._rings or ring.session in self._ended:
            ring.close()
        else:
            self._rings[ring.session] = ring
            self._on_publisher(ring.session, ring.next_number)

    def _without_ended(self) -> list[DirectMessage]:
        """Let go of the rings of publishers that have ended; the last messages of these."""
        rest = []
        for session in list(self._rings):
            if not _answers(self._place / f"w-{session:016x}.sock"):
                ring = self._rings.pop(session)
                while (message := ring.read()) is not None:
                    rest.append(message)
                self._overrun_before += ring.overrun
                self._ended.append(session)
                ring.close()
        return rest


@contextlib.contextmanager
def _explained(topic: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        raise ClientError(
            f"{topic!r} cannot be shared in {_MEMORY} ({why}); give shared_memory=False to do without"
        ) from error


def _bound(path: Path) -> socket.socket:
    """A socket at that path, in a folder which is made if it is not there, and is ours alone."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.setblocking(False)
    try:
        for attempt in range(_RETRIES):
            for folder in (path.parent.parent, path.parent):
                with contextlib.suppress(FileExistsError, FileNotFoundError):
                    folder.mkdir(0o700)
                with contextlib.suppress(FileNotFoundError):
                    _require_own(folder)
            try:
                made.bind(str(path))
                break
            except FileNotFoundError:
                # The last one to leave has removed the folder.
                if attempt == _RETRIES - 1:
                    raise
    except BaseException:
        made.close()
        raise
    return made


def _require_own(folder: Path) -> None:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(0, f"{folder} is not a folder of yours alone")


def _sweep_all(places: Path) -> None:
    """Of all topics: nobody may ever come again for that of one who was killed."""
    for place in places.iterdir():
        _sweep(place)
        with contextlib.suppress(OSError):
            place.rmdir()


def _sweep(place: Path) -> None:
    """Remove what those who were killed have left."""
    for path in place.glob("[rw]-*.sock"):
        if not _answers(path):
            for each in _files(path):
                each.unlink(missing_ok=True)


def _remove(path: Path) -> None:
    """What belongs to a socket, and its folder if that was the last."""
    for each in _files(path):
        each.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        path.parent.rmdir()


def _files(path: Path) -> Iterator[Path]:
    # The socket last: as long as it is there, somebody finds what is left.
    yield from (path.with_suffix(suffix) for suffix in (".ring", ".new", ".sock"))


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as visitor:
        try:
            visitor.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
        return True
