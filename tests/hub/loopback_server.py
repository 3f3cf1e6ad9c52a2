"""The loopback Hub's HTTP side: reads a request, lets the ordered faults happen, writes the reply.

In go a state, faults and a list for the records; out comes a server on a free port of 127.0.0.1,
one thread a connection, with HTTP/1.1 connections that stay open as the client expects.
"""

import contextlib
import socket
import struct
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from tests.hub.loopback_exchange import Reply, Request, State, error_reply
from tests.hub.loopback_faults import Fault, Faults, changed
from tests.hub.loopback_repository import HubError
from tests.hub.loopback_routes import answer

CUT = 0  # the status on record where the line was cut before a reply


class Record(NamedTuple):
    """One request as it was answered; headers' names in lower case, the path with its query."""

    method: str
    path: str
    headers: dict[str, str]
    status: int


class LineCut(Exception):
    """The line was cut on order: nothing more is read or written."""


class LoopbackServer(ThreadingHTTPServer):
    """A server that knows its open connections, so that all of them end with it."""

    daemon_threads = True

    def __init__(self, state: State, faults: Faults, records: list[Record]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.state, self.faults, self.records = state, faults, records
        self._connections: set[socket.socket] = set()
        self._guard = threading.Lock()

    def get_request(self) -> tuple[socket.socket, Any]:
        """Takes in a connection."""
        connection, address = super().get_request()
        with self._guard:
            self._connections.add(connection)
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        """Ends a connection."""
        with self._guard:
            self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing where a client went away; anything else is a bug and is told."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    def close(self) -> None:
        """Stops listening and ends all connections."""
        self.shutdown()
        self.server_close()
        with self._guard:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


class Handler(BaseHTTPRequestHandler):
    """Answers the requests of one connection, one after the other."""

    server: LoopbackServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each reply waits 40 ms for an acknowledgement

    def _serve(self) -> None:
        """Reads, faults, answers, records, writes: what every method does."""
        faults = self.server.faults
        try:
            cut = faults.take("cut request", self.command, self.path)
            body = self._body(stop_after=cut.after_bytes if cut else None)
            if cut:
                raise LineCut
            fault = faults.take("fail", self.command, self.path)
            reply = _failed(fault) if fault else self._reply(body)
            if self.command == "GET" and faults.take("corrupt", "GET", self.path):
                reply = Reply(reply.status, changed(reply.body), reply.headers)
            cut = faults.take("cut response", self.command, self.path)
            self._record(reply.status)
            self._write(reply, stop_after=cut.after_bytes if cut else None)
        except LineCut:
            self._record(CUT)
            self._hang_up()

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _serve

    def _reply(self, body: bytes) -> Reply:
        parts = urlsplit(self.path)
        state = self.server.state
        try:
            request = Request(
                method=self.command,
                path=parts.path,
                query=parse_qs(parts.query, keep_blank_values=True),
                headers=self._headers(),
                body=body,
                account=state.account(self.headers.get("Authorization")),
            )
            return answer(state, request)
        except HubError as error:
            return error_reply(error)
        except (KeyError, TypeError, ValueError) as error:
            return error_reply(HubError(400, f"The request is not understood: {error!r}"))

    def _headers(self) -> dict[str, str]:
        return {name.lower(): value for name, value in self.headers.items()}

    def _record(self, status: int) -> None:
        self.server.records.append(Record(self.command, self.path, self._headers(), status))

    def _body(self, *, stop_after: int | None) -> bytes:
        """The body, of a told length or in chunks; cut short where it is to be."""
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            body = b"".join(iter(self._chunk, b""))
        else:
            length = int(self.headers.get("Content-Length") or 0)
            wanted = length if stop_after is None else min(length, stop_after)
            body = self.rfile.read(wanted)
            if len(body) < wanted:
                raise ConnectionResetError(f"{len(body)} of {wanted} bytes came")
        return body if stop_after is None else body[:stop_after]

    def _chunk(self) -> bytes:
        size = int(self.rfile.readline().split(b";")[0], 16)
        chunk = self.rfile.read(size)
        self.rfile.readline()
        return chunk

    def _write(self, reply: Reply, *, stop_after: int | None) -> None:
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(reply.body)))
        if stop_after == 0:
            self._hang_up()
            return
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply.body[:stop_after])
        if stop_after is not None:
            self.close_connection = True

    def _hang_up(self) -> None:
        """Cuts the line at once, as a lost network does: what is on its way is thrown away."""
        self.close_connection = True
        self._headers_buffer: list[bytes] = []
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.rfile.close()

    def log_message(self, *_: Any) -> None:
        """Says nothing: the records hold it all."""


def _failed(fault: Fault) -> Reply:
    error = HubError(fault.status, f"The loopback Hub fails with {fault.status}, as ordered")
    reply = error_reply(error)
    return Reply(reply.status, reply.body, {**reply.headers, **fault.headers})
