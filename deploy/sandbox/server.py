"""HTTP/1.1 on loopback: one thread per connection, faults before everything else."""

from __future__ import annotations

import contextlib
import select
import socket
import sys
import threading
import time
from email.utils import formatdate
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote

from . import errors, routes
from .endpoints import Answer, Call, of_json
from .faults import Fault
from .journal import Request

if TYPE_CHECKING:
    from .cluster import Sandbox

_PHRASES = {status.value: status.phrase for status in HTTPStatus}
_ONE_SEND = 64 * 1024  # bytes: up to here head and body leave together


class Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a hung handler must not keep the process
    request_queue_size = 256

    def __init__(self, port: int, cluster: Sandbox) -> None:
        self.cluster = cluster
        self.stopping = threading.Event()
        self._connections: set[socket.socket] = set()
        super().__init__(("127.0.0.1", port), Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news; anything else is a defect of the sandbox."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def stop(self) -> None:
        self.stopping.set()
        self.shutdown()
        self.server_close()
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class names it so)
        """The cluster keeps its own log."""

    def do_GET(self) -> None:
        cluster = self.server.cluster
        path, _, query = self.path.partition("?")
        length = int(self.headers.get("Content-Length") or 0)
        call = Call(
            self.command,
            unquote(path),
            dict(parse_qsl(query, keep_blank_values=True)),
            self.headers.get("Accept") or "*/*",
            self.headers.get("Content-Type") or "application/json",
            self.headers.get("Authorization"),
            self.rfile.read(length) if length else b"",
        )
        if call.path.startswith("/sandbox/"):
            self._send(cluster.control(call))
            return
        self._serve(call)

    do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = do_OPTIONS = do_GET  # noqa: N815 (likewise)

    def _serve(self, call: Call) -> None:
        cluster = self.server.cluster
        try:
            route = routes.parse(call.method, call.path, call.query)
        except errors.ApiError as error:
            self._send(of_json(error.status, error.code))
            return
        request = self._request(call, route)
        slot = cluster.journal.open(request)
        fault = cluster.faults.meet(request.verb, request.resource, request.namespace, request.name)
        if fault is None:
            answer: Answer | None = cluster.endpoints.answer(call, route)
        else:
            answer = self._spoil(fault, call, route)
        cluster.journal.close(slot, answer.status if answer else None, call.user.name)
        if answer is None:
            self.close_connection = True
        else:
            self._send(answer, half=fault is not None and fault.half)

    def _request(self, call: Call, route: routes.Route | None) -> Request:
        """The call as the log and the faults name it."""
        agent, now = self.headers.get("User-Agent") or "", time.monotonic()
        if route is None:
            return Request("get", call.path, "", "", None, now, agent, "", call.query, call.raw)
        name = route.name
        if route.verb == "create" and not name:
            name = call.sent_name  # the path of a creation names nobody; whoever reads the log wants to know
        where = route.namespace or ""
        return Request(route.verb, route.label, where, name, None, now, agent, "", call.query, call.raw)

    def _spoil(self, fault: Fault, call: Call, route: routes.Route | None) -> Answer | None:
        """The answer that a fault leaves of this call; None: the connection ends without one."""
        cluster = self.server.cluster
        if fault.delay and cluster.faults.abandoned.wait(fault.delay):
            return None
        released = cluster.faults.released
        answer = cluster.endpoints.answer(call, route) if fault.happens else None
        if fault.silent:
            self._hang(released)
            return None
        if fault.drop:
            return None
        if fault.answers:
            answer = Answer(*fault.made_up(route.details if route else {}))
        if answer is not None:
            answer.headers.update(fault.headers)
        return answer

    def _hang(self, released: threading.Event) -> None:
        """Say nothing until the client gives up, the fault is cleared or the server stops."""
        while not released.wait(0.2) and not self._is_deserted():
            pass

    def _send(self, answer: Answer, *, half: bool = False) -> None:
        if answer.stream is not None:
            self._stream(answer)
            return
        headers = {"Content-Type": answer.content_type, "Content-Length": str(len(answer.body)), **answer.headers}
        body = b"" if self.command == "HEAD" else answer.body
        if half:
            self.close_connection = True
            body = body[: len(body) // 2]
        head = self._head(answer.status, headers)
        if len(body) <= _ONE_SEND:
            self.wfile.write(head + body)
        else:
            self.wfile.write(head)
            self.wfile.write(body)

    def _stream(self, answer: Answer) -> None:
        assert answer.stream is not None
        self.wfile.write(self._head(200, {"Content-Type": answer.content_type, "Transfer-Encoding": "chunked"}))
        for line in answer.stream:
            if line:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            elif self._is_deserted():
                self.close_connection = True
                return
        self.wfile.write(b"0\r\n\r\n")

    def _is_deserted(self) -> bool:
        readable, _, _ = select.select([self.connection], [], [], 0)
        return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)

    def _head(self, status: int, headers: dict[str, str]) -> bytes:
        date = formatdate(self.server.cluster.clock.time(), usegmt=True)
        lines = [f"HTTP/1.1 {status} {_PHRASES.get(status, 'Unknown')}", f"Date: {date}"]
        lines += [f"{name}: {text}" for name, text in headers.items()]
        if self.close_connection:
            lines.append("Connection: close")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
