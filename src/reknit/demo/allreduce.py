"""The sum over all ranks, over TCP: a star around rank 0, which adds in the order of the ranks.

The order is fixed so that the same run gives the same bits. It behaves like NCCL and gloo where it matters to
whoever watches: a rank whose peer died gets an error at once, a rank whose peer is frozen waits for ever.
"""

from __future__ import annotations

import socket
import struct
import time
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

RENDEZVOUS_S = 30.0
"""How long the ranks wait for each other at the start. Afterwards nothing is bounded."""

_RETRY_S = 0.02
_GREETING = struct.Struct("!8sII")
_MAGIC = b"reknitar"
_READY = b"!"


class Group(Protocol):
    """The ranks that train together."""

    rank: int
    size: int

    def all_reduce(self, values: Array) -> Array:
        """The sum of every rank's `values`, the same bits on every rank. All must call it, with equal shapes.

        Raises ConnectionResetError where a peer is gone.
        """
        ...

    def close(self) -> None:
        """Let go of the peers; they get an error at their next call."""
        ...


class Alone:
    """A group of one."""

    rank = 0
    size = 1

    def all_reduce(self, values: Array) -> Array:
        """A copy: there is nobody to add."""
        return values.copy()

    def close(self) -> None:
        """Nothing to let go of."""


class Star:
    """A group over sockets. `peers` are every other rank for rank 0, and only rank 0 for the others."""

    def __init__(self, rank: int, size: int, peers: dict[int, socket.socket]) -> None:
        self.rank = rank
        self.size = size
        self._peers = dict(sorted(peers.items()))
        self._names = {peer: _address(sock) for peer, sock in self._peers.items()}

    def all_reduce(self, values: Array) -> Array:
        """See Group. Costs each rank one message each way, rank 0 as many as it has peers."""
        if self.rank:
            self._send(0, values)
            return self._receive(0, values)
        total = values.copy()
        for peer in self._peers:
            total += self._receive(peer, values)
        for peer in self._peers:
            self._send(peer, total)
        return total

    def close(self) -> None:
        """See Group."""
        for sock in self._peers.values():
            sock.close()

    def _send(self, peer: int, values: Array) -> None:
        try:
            self._peers[peer].sendall(values.data.cast("B"))
        except OSError:
            raise self._gone(peer) from None

    def _receive(self, peer: int, like: Array) -> Array:
        values: Array = like.copy()
        view = values.data.cast("B")
        try:
            _receive_into(self._peers[peer], view)
        except OSError:
            raise self._gone(peer) from None
        return values

    def _gone(self, peer: int) -> ConnectionResetError:
        return ConnectionResetError(
            f"all-reduce: Connection closed by peer {self._names[peer]} (rank {peer})"
        )


def rendezvous(rank: int, size: int, host: str, port: int, timeout: float = RENDEZVOUS_S) -> Group:
    """Meet the other ranks at rank 0, which listens at `host`:`port`.

    Raises TimeoutError where they are not all there after `timeout` seconds, OSError where the port is taken
    or the host unknown.
    """
    if size == 1:
        return Alone()
    deadline = time.monotonic() + timeout
    peers = (
        _welcome(size, host, port, deadline) if rank == 0 else {0: _join(rank, size, host, port, deadline)}
    )
    for sock in peers.values():
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Star(rank, size, peers)


def _welcome(size: int, host: str, port: int, deadline: float) -> dict[int, socket.socket]:
    peers: dict[int, socket.socket] = {}
    with socket.create_server((host, port), backlog=size) as server:
        while len(peers) < size - 1:
            server.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                sock, _ = server.accept()
            except TimeoutError:
                missing = ", ".join(str(rank) for rank in range(1, size) if rank not in peers)
                raise TimeoutError(
                    f"rendezvous at {host}:{port}: rank {missing} of {size} ranks did not come in time"
                ) from None
            who = _greeted(sock, size)
            if who is None or who in peers:  # a stranger, or a late rank of another run: not ours to talk to
                sock.close()
            else:
                peers[who] = sock
    for sock in peers.values():
        sock.sendall(_READY)
    return peers


def _greeted(sock: socket.socket, size: int) -> int | None:
    """Which rank of this gang has called, None where it is not one."""
    sock.settimeout(1.0)
    greeting = bytearray(_GREETING.size)
    try:
        _receive_into(sock, memoryview(greeting))
    except OSError:
        return None
    magic, rank, ranks = _GREETING.unpack(greeting)
    return rank if magic == _MAGIC and ranks == size and 0 < rank < size else None


def _join(rank: int, size: int, host: str, port: int, deadline: float) -> socket.socket:
    while True:
        left = max(deadline - time.monotonic(), 0.001)
        sock = None
        try:
            sock = socket.create_connection((host, port), timeout=left)
            if sock.getsockname() != sock.getpeername():  # else TCP has connected the socket to itself
                sock.settimeout(left)
                sock.sendall(_GREETING.pack(_MAGIC, rank, size))
                _receive_into(sock, memoryview(bytearray(1)))
                return sock
        except (ConnectionError, TimeoutError):
            pass
        if sock is not None:
            sock.close()
        if time.monotonic() >= deadline:
            raise TimeoutError(f"rendezvous at {host}:{port}: rank {rank} could not meet rank 0 in time")
        time.sleep(_RETRY_S)


def _receive_into(sock: socket.socket, view: memoryview) -> None:
    """Fill the view. Raises ConnectionResetError where the other side closes before."""
    while view:
        count = sock.recv_into(view)
        if count == 0:
            raise ConnectionResetError("closed by peer")
        view = view[count:]


def _address(sock: socket.socket) -> str:
    host, port = sock.getpeername()[:2]
    return f"[{host}]:{port}"


def one_row_each(group: Group, row: Array) -> Array:
    """Every rank's `row`, stacked in the order of the ranks, on every rank."""
    table: Array = np.zeros((group.size, *row.shape), row.dtype)
    table[group.rank] = row
    return group.all_reduce(table)
