"""Messages between a suite and the process of a candidate: JSON with a length before it, and files beside it.

Nothing is unpickled, so that a message can say a wrong thing and do nothing. The suite's side gives each wait an end.
"""

from __future__ import annotations

import array
import json
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any

HEAD = struct.Struct("<IB")  # bytes of the text, and files beside it
MOST = 1 << 26  # bytes of a message: the text of a kernel may be long
FILES = 253  # beside a message, at most: what Linux lets through at once
BLOCK = 1 << 20
TURN = 0.1  # seconds between two calls of `idle`


class ChannelClosed(Exception):
    """The other side has gone."""


class Late(Exception):
    """No message came in time."""


class Unexpected(Exception):
    """Something came that is no message, or one too many."""


class Channel:
    """One end of a pair of sockets. idle: called a few times a second while a message is waited for."""

    def __init__(self, end: socket.socket, idle: Callable[[], None] = lambda: None) -> None:
        self.end, self.idle = end, idle
        self._ready = select.poll()
        self._ready.register(end, select.POLLIN)

    def send(self, message: Any, files: Sequence[int] = ()) -> None:
        """ChannelClosed if the other side can read it no more."""
        data = json.dumps(message).encode()
        head = HEAD.pack(len(data), len(files))
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
        try:
            sent = self.end.sendmsg([head, data], rights)  # in one, so that the other side wakes once
            if sent < len(head) + len(data):
                self.end.sendall((head + data)[sent:])
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def receive(self, ends: float = float("inf")) -> tuple[Any, list[int]]:
        """A message and the files beside it, which belong to the caller. ends: by time.monotonic."""
        head, files = self._read(HEAD.size, ends, with_files=True)
        try:
            size, count = HEAD.unpack(head)
            if size > MOST or count != len(files):
                raise Unexpected(f"a message of {size} bytes with {count} files")
            text, _ = self._read(size, ends)
            try:
                return json.loads(text), files
            except (ValueError, RecursionError) as error:
                raise Unexpected(f"no JSON: {error}") from error
        except BaseException:
            close(files)
            raise

    def waiting(self) -> bool:
        """Whether something has come that was not read, or the other side has gone."""
        return bool(self._ready.poll(0))

    def close(self) -> None:
        self.end.close()

    def _read(self, size: int, ends: float, with_files: bool = False) -> tuple[bytes, list[int]]:
        found, files = bytearray(), list[int]()
        while len(found) < size:
            self._wait(ends)
            try:
                if with_files:
                    part, more, flags, _ = socket.recv_fds(self.end, size - len(found), FILES)
                    files += more
                    if flags & socket.MSG_CTRUNC:
                        close(files)
                        raise Unexpected(f"more than {FILES} files")
                else:
                    part = self.end.recv(min(size - len(found), BLOCK))
            except OSError as error:
                close(files)
                raise ChannelClosed(str(error)) from error
            if not part:
                close(files)
                raise ChannelClosed("end of file")
            found += part
        return bytes(found), files

    def _wait(self, ends: float) -> None:
        if ends == float("inf"):
            return
        while not self._ready.poll(1000 * max(0.0, min(TURN, ends - time.monotonic()))):
            self.idle()
            if time.monotonic() >= ends:
                raise Late


def close(files: Sequence[int]) -> None:
    for file in files:
        os.close(file)
