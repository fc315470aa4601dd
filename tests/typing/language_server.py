"""A client of a language server: enough to ask pyright what it shows of a place in a program."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.process import environment


class Client:
    """Sends requests one after the other, and answers those of the server with nothing."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._into, self._from = process.stdin, process.stdout
        self._number = 0

    def ask(self, method: str, parameters: dict[str, Any]) -> Any:
        self._number += 1
        self.tell(method, parameters, id=self._number)
        while (message := self._read()).get("id") != self._number or "method" in message:
            if "method" in message and "id" in message:
                items = message["params"].get("items") if message["method"] == "workspace/configuration" else None
                self._send({"id": message["id"], "result": items and [None] * len(items)})
        return message["result"]

    def tell(self, method: str, parameters: dict[str, Any], **more: Any) -> None:
        self._send({"method": method, "params": parameters, **more})

    def _send(self, message: dict[str, Any]) -> None:
        data = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self._into is not None
        self._into.write(b"Content-Length: %d\r\n\r\n%s" % (len(data), data))
        self._into.flush()

    def _read(self) -> dict[str, Any]:
        size = 0
        assert self._from is not None
        while line := self._from.readline().strip():
            if line.lower().startswith(b"content-length:"):
                size = int(line.partition(b":")[2])
        message: dict[str, Any] = json.loads(self._from.read(size))
        return message


@contextmanager
def opened(server: Path, folder: Path, program: str) -> Iterator[Any]:
    """What the server shows at (line, column), both from 0, of a program that lies in no file."""
    uri = f"{folder.as_uri()}/opened.py"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    environ = environment() | {"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    with subprocess.Popen([server, "--stdio"], env=environ, **pipes) as process:  # type: ignore[call-overload]
        try:
            client = Client(process)
            plain = {"textDocument": {"hover": {"contentFormat": ["plaintext"]}}}
            folders = [{"uri": folder.as_uri(), "name": "folder"}]
            client.ask("initialize", {"processId": None, "workspaceFolders": folders, "capabilities": plain})
            client.tell("initialized", {})
            document = {"uri": uri, "languageId": "python", "version": 1, "text": program}
            client.tell("textDocument/didOpen", {"textDocument": document})

            def shown(line: int, column: int) -> str:
                place = {"textDocument": {"uri": uri}, "position": {"line": line, "character": column}}
                text: str = client.ask("textDocument/hover", place)["contents"]["value"]
                return text

            yield shown
        finally:
            process.kill()
