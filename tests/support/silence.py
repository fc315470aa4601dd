"""A TCP proxy that becomes silent: so a server sees a client that was stopped in the middle of a request."""

import contextlib
import socket
import threading
from types import TracebackType


class Silence:
    """Forwards one connection to 127.0.0.1:port. `after(count)` lets that many further chunks of the client pass, as it
    sends them, and then keeps all that it sends, with the connection open. What the server sends passes always."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._sockets = [self._listening]
        self._left: float = float("inf")
        self.began = threading.Event()  # something was kept
        self.port = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def after(self, count: int) -> None:
        self._left = count

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            client, _ = self._listening.accept()
            server = socket.create_connection(("127.0.0.1", self._to))
            self._sockets += [client, server]
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._answer, args=(server, client), daemon=True).start()
            while chunk := client.recv(1 << 16):
                if self._left > 0:
                    self._left -= 1
                    server.sendall(chunk)
                else:
                    self.began.set()

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while chunk := server.recv(1 << 16):
                client.sendall(chunk)

    def __enter__(self) -> "Silence":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
