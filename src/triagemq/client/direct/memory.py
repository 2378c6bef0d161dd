"""Messages between processes of one host, in shared memory.

Every direct topic has a folder in /dev/shm/triagemq-UID, which only this user may enter:

    w-SESSION.sock, w-SESSION.ring    a publisher, and the ring of its messages
    r-TOKEN.sock                      a subscriber

A datagram to one of these sockets means "look". A publisher lists the subscribers when it starts, and again when a
subscriber has knocked; it wakes each after every message, the first time with its ring as an open file, and never
waits. A subscriber lists the publishers when it starts; later ones wake it. Both bind their socket before they list, so
that one of two always sees the other. Readers sleep in the kernel; there is no polling. A killed process leaves its
files; the next one that finds its socket dead removes them.

A ring has one writer and any number of readers, each with its own cursor. Message n is in slot n modulo their number:

    header      magic 8, version 4, slots 4, slot_bytes 4, reserved 4, session 8, head 8
    slot        before 8, published_ns 8, length 4, checksum 4, message slot_bytes, after 8

The writer puts n in front, the message, n behind; a reader looks in the opposite order, so that a message that is being
replaced shows two different numbers. The checksum makes that certain on processors that reorder what they write. Words
of eight octets are aligned, in this machine's order, and written in one go.
"""

from __future__ import annotations

import array
import contextlib
import hashlib
import mmap
import os
import secrets
import socket
import stat
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from struct import Struct
from zlib import crc32

from triagemq.client.direct.wire import DirectMessage
from triagemq.errors import ClientError

_MEMORY = Path("/dev/shm")
_NAMESPACE = Path("/proc/thread-self/ns/net")
_LOOK = b"."
_RETRIES = 20
_GREETING_SECONDS = 1.0
_REMEMBERED = 1000
_MESSAGES_AT_ONCE = 64

_HEADER = Struct("@8sIIIIQ")
_MAGIC, _VERSION = b"TriageRg", 1
_HEAD_AT = _HEADER.size
_HEADER_BYTES = 64
_FRONT = Struct("@QII")
_WORD = 8
_BEFORE_BYTES = _WORD + _FRONT.size
_TRIES = 3
_MOST_RING_BYTES = 16 << 20
_MOST_SLOTS, _LEAST_SLOTS = 1024, 8


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

    `on_publisher` gets the session of each, and the number of its first message that is for this subscriber.
    """

    def __init__(
        self, topic: str, address: str, on_publisher: Callable[[int, int], None] = lambda session, first: None
    ) -> None:
        self._on_publisher = on_publisher
        self._rings: dict[int, RingReader] = {}
        # Publishers whose rings are closed; a second file of one may still arrive.
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
    """Of all topics: the topic of a killed process may never be used again."""
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
    # The socket last: as long as it is there, what is left is found.
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


class _Layout:
    def __init__(self, slots: int, slot_bytes: int) -> None:
        self.slots, self.slot_bytes = slots, slot_bytes
        self.stride = _BEFORE_BYTES + -(-slot_bytes // _WORD) * _WORD + _WORD
        self.total_bytes = _HEADER_BYTES + slots * self.stride

    def slot(self, number: int) -> int:
        return _HEADER_BYTES + number % self.slots * self.stride


class RingWriter:
    """Makes the file, which must not exist yet; OSError if there is no room for it."""

    def __init__(self, path: Path, session: int, slot_bytes: int) -> None:
        per_slot = _Layout(1, slot_bytes).stride
        layout = self._layout = _Layout(
            max(_LEAST_SLOTS, min(_MOST_SLOTS, _MOST_RING_BYTES // per_slot)), slot_bytes
        )
        unfinished = path.with_suffix(".new")
        file = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            # All of it now: memory that is missing later on would end a process that touches it.
            os.posix_fallocate(file, 0, layout.total_bytes)
            self._memory = mmap.mmap(file, layout.total_bytes)
            self._words = memoryview(self._memory).cast("Q")
            _HEADER.pack_into(self._memory, 0, _MAGIC, _VERSION, layout.slots, slot_bytes, 0, session)
            unfinished.rename(path)
            self.file = file
            """For readers that find the path gone."""
        except OSError:
            os.close(file)
            unfinished.unlink()
            raise

    def write(self, number: int, published_ns: int, payload: bytes) -> None:
        """Numbers grow by one."""
        begin = self._layout.slot(number)
        message = begin + _BEFORE_BYTES
        self._words[begin // _WORD] = number
        _FRONT.pack_into(
            self._memory, begin + _WORD, published_ns, len(payload), _checksum(number, published_ns, payload)
        )
        self._memory[message : message + len(payload)] = payload
        self._words[(begin + self._layout.stride) // _WORD - 1] = number
        self._words[_HEAD_AT // _WORD] = number

    def close(self) -> None:
        """Twice is an error."""
        os.close(self.file)
        self._words.release()
        self._memory.close()


class RingReader:
    """Reads from the message after `cursor` on; None stands for the last one that is there. The file is closed."""

    def __init__(self, file: int, cursor: int | None) -> None:
        try:
            self._memory = mmap.mmap(file, 0, access=mmap.ACCESS_READ)
        finally:
            os.close(file)
        self._words = memoryview(self._memory).cast("Q")
        magic, version, slots, slot_bytes, _, self.session = _HEADER.unpack_from(self._memory)
        self._layout = _Layout(slots, slot_bytes)
        if (magic, version, len(self._memory)) != (_MAGIC, _VERSION, self._layout.total_bytes):
            self.close()
            raise OSError("no ring of this version")
        self.next_number = 1 + (self._head if cursor is None else cursor)
        """That of the message which is read next."""
        self.overrun = 0
        """Messages that were replaced before they were read."""

    @property
    def _head(self) -> int:
        return self._words[_HEAD_AT // _WORD]

    def read(self) -> DirectMessage | None:
        """The next message; None if there is none at the moment."""
        layout = self._layout
        while True:
            number = self.next_number
            begin = layout.slot(number)
            for _ in range(_TRIES):
                after = self._words[(begin + layout.stride) // _WORD - 1]
                if after != number:
                    break
                published_ns, length, checksum = _FRONT.unpack_from(self._memory, begin + _WORD)
                message = begin + _BEFORE_BYTES
                payload = self._memory[message : message + min(length, layout.slot_bytes)]
                before = self._words[begin // _WORD]
                if before == number and checksum == _checksum(number, published_ns, payload):
                    self.next_number += 1
                    return DirectMessage(self.session, number, published_ns, payload)
            if after < number:
                return None
            # A quarter of the ring ahead of the writer, or the next one would be gone at once, too.
            oldest = self._head - layout.slots * 3 // 4
            self.next_number = max(number + 1, oldest)
            self.overrun += self.next_number - number

    def close(self) -> None:
        self._words.release()
        self._memory.close()


def _checksum(number: int, published_ns: int, payload: bytes) -> int:
    return crc32(payload, (number ^ published_ns) & 0xFFFFFFFF)
