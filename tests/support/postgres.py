"""A real PostgreSQL server for a test: Debian's `initdb` and `pg_ctl`, its own data directory, loopback, a free port.

The server refuses to run as root. For root it runs as the user `postgres`, which Debian's package makes.
"""
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

PASSWORD = "pa:ss@wo/rd %27"


def binaries() -> Path | None:
    """The directory of the newest initdb and pg_ctl."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    if on_path := shutil.which("initdb"):
        found.append(Path(on_path).parent)
    return max(found, key=lambda path: (path.parts[-2].zfill(9), path), default=None)


def missing() -> str:
    """Why no server can run here, or an empty string."""
    if binaries() is None:
        return "PostgreSQL is not installed: apt-get install postgresql"
    try:
        import psycopg  # noqa: F401
    except ImportError as error:
        return f"psycopg cannot be imported: {error}"
    if not hasattr(os, "geteuid"):
        return "these tests start PostgreSQL on POSIX systems only"
    if os.geteuid() == 0:
        import pwd

        try:
            pwd.getpwnam("postgres")
        except KeyError:
            return "PostgreSQL does not run as root, and there is no user postgres"
    return ""


def free_port() -> int:
    """Not one that a connection of another process may get while the server does not run: Linux takes those from 32768
    on."""
    while True:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port := random.randrange(20_000, 32_000)))
            return port


class Server:
    """One server. `url` is that of its superuser. stop and start leave the data as they are."""

    database = "postgres"

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="manytail-postgres-", dir="/tmp"))
        self.port = free_port()
        password = self.folder / "password"
        password.write_text(PASSWORD)
        if os.geteuid() == 0:
            for path in (self.folder, password):
                shutil.chown(path, "postgres", "postgres")
        self.data = self.folder / "data"
        options = ["-U", "tester", "-A", "scram-sha-256", "-E", "UTF8", "--locale=C", "--no-sync"]
        self._run("initdb", "-D", self.data, f"--pwfile={password}", *options)
        self.start()

    def url(self, user: str = "tester", password: str = PASSWORD, database: str = "") -> str:
        return f"postgresql://{user}:{quote(password, safe='')}@127.0.0.1:{self.port}/{database or self.database}"

    def execute(self, *statements: str, database: str = "") -> list[Any]:
        """Run each statement in its own transaction. Returns the rows of the last one."""
        import psycopg

        with psycopg.connect(self.url(database=database), autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def start(self) -> None:
        options = (
            f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' "
            "-c fsync=off -c max_connections=30"
        )
        self._run("pg_ctl", "-D", self.data, "-l", self.folder / "log", "-w", "-o", options, "start")

    def stop(self, mode: str = "fast") -> None:
        """mode: "fast" closes the connections; "immediate" stops as a crash does."""
        self._run("pg_ctl", "-D", self.data, "-w", "-m", mode, "stop")

    def freeze(self, number: signal.Signals) -> None:
        """SIGSTOP or SIGCONT for every process of the server. Each has a process group of its own."""
        postmaster = int((self.data / "postmaster.pid").read_text().split()[0])
        os.kill(postmaster, number)  # first: a stopped one starts no others
        listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
        for process, parent in (line.split() for line in listed.splitlines()):
            if int(parent) == postmaster:
                with suppress(ProcessLookupError):
                    os.kill(int(process), number)

    @property
    def runs(self) -> bool:
        return (self.data / "postmaster.pid").exists()

    def remove(self) -> None:
        if self.runs:
            self.stop("immediate")
        shutil.rmtree(self.folder)

    def _run(self, *command: Any) -> None:
        user: Any = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.geteuid() == 0 else {}
        folder = binaries()
        assert folder is not None
        # The server keeps the standard output of pg_ctl open: a pipe would never end.
        with (self.folder / "said").open("w+") as said:
            environ = {**os.environ, "LC_ALL": "C", "PGCTLTIMEOUT": "600"}
            called = [folder / command[0], *command[1:]]
            where: dict[str, Any] = {"stdout": said, "stderr": said, "cwd": self.folder, "env": environ, **user}
            ran = subprocess.run(called, check=False, **where)
            said.seek(0)
            assert ran.returncode == 0, f"{command}: {said.read()}"
