"""Runs a command beside its own RabbitMQ server:  tools/rabbitmq.py COMMAND [ARGUMENT...]

The server is Debian's package rabbitmq-server. It is installed if the machine has none and this runs as root; the
system service is not started. The server runs on loopback with free ports, its own node name and its own data
directory, and is stopped when the command has ended. The command finds it in the environment as
MANYTAIL_RABBITMQ=host:port (guest, guest). If that names a server already, it is used instead and left running.

Exit status: that of the command; 3: no server can run here, and the last line on standard error says why.
"""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

VARIABLE = "MANYTAIL_RABBITMQ"
START_SECONDS = 180
STOP_SECONDS = 60


def unavailable(why: str) -> NoReturn:
    print(f"no RabbitMQ server: {why}", file=sys.stderr)
    sys.exit(3)


def install() -> None:
    """Install the package if it is missing."""
    if shutil.which("rabbitmq-server"):
        return
    if shutil.which("apt-get") is None:
        unavailable("rabbitmq-server is not installed, and there is no apt-get to install it with")
    if os.geteuid() != 0:
        unavailable("rabbitmq-server is not installed, and only root can install it: apt-get install rabbitmq-server")
    print("--> installing rabbitmq-server", file=sys.stderr)
    with no_services():
        for arguments in (["install"], ["update"], ["install"]):
            package = [] if arguments == ["update"] else ["-y", "--no-install-recommends", "rabbitmq-server"]
            environ = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
            ran = subprocess.run(["apt-get", "-qq", *arguments, *package], env=environ, stdout=sys.stderr, check=False)
            if shutil.which("rabbitmq-server"):
                return
    unavailable(f"apt-get install rabbitmq-server ended with status {ran.returncode}")


@contextmanager
def no_services() -> Iterator[None]:
    """Packages that are installed in this block start no services: dpkg asks this script, and 101 forbids it."""
    policy = Path("/usr/sbin/policy-rc.d")
    if policy.exists():
        yield  # somebody else has set a policy: keep it
        return
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    try:
        yield
    finally:
        policy.unlink()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def settings(folder: Path, port: int) -> dict[str, str]:
    """Every setting that the server would otherwise share with another one."""
    loopback = "{127,0,0,1}"
    return {
        "HOME": str(folder),  # the Erlang cookie
        "RABBITMQ_NODENAME": f"manytail-{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_MNESIA_BASE": str(folder / "data"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_FEATURE_FLAGS_FILE": str(folder / "data/feature_flags"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "data/plugins"),
        "RABBITMQ_PID_FILE": str(folder / "data/pid"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"-kernel inet_dist_use_interface {loopback}",
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(free_port()),
    }


def make_folders(folder: Path) -> None:
    """Make the directories where the server writes. Started by root, Debian's launcher runs it as user rabbitmq."""
    folder.chmod(0o755)
    made = [folder / "data", folder / "log"]
    for path in made:
        path.mkdir()
    if os.geteuid() == 0:
        user = pwd.getpwnam("rabbitmq")
        for path in [folder, *made]:
            os.chown(path, user.pw_uid, user.pw_gid)


def await_port(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until it takes connections: it opens its port last."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            unavailable(f"it ended with status {server.returncode} while starting:\n{log.read_text()}")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    unavailable(f"it did not open its port within {START_SECONDS} s:\n{log.read_text()}")


def stop(server: subprocess.Popen[bytes], environ: dict[str, str]) -> None:
    """End the server's own process first, for an orderly end; then its launcher's group; then its port mapper."""
    pid = Path(environ["RABBITMQ_PID_FILE"])
    if pid.exists() and server.poll() is None:
        os.kill(int(pid.read_text()), signal.SIGTERM)
    else:
        os.killpg(server.pid, signal.SIGTERM)
    try:
        server.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
    subprocess.run(
        ["epmd", "-port", environ["ERL_EPMD_PORT"], "-kill"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )


@contextmanager
def running() -> Iterator[str]:
    """host:port of a server that runs during the block."""
    install()
    with tempfile.TemporaryDirectory(prefix="manytail-rabbitmq-", ignore_cleanup_errors=True) as name:
        folder, port = Path(name), free_port()
        make_folders(folder)
        environ = os.environ | settings(folder, port)
        log = folder / "console.log"
        with log.open("wb") as console:
            server = subprocess.Popen(
                ["rabbitmq-server"],
                env=environ,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
            )
        try:
            await_port(port, server, log)
            yield f"127.0.0.1:{port}"
        finally:
            stop(server, environ)


def main(command: list[str]) -> int:
    if not command:
        sys.exit(__doc__)
    if os.environ.get(VARIABLE):
        return status_of(command, os.environ)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exception, so that the server is stopped
    with running() as address:
        print(f"--> RabbitMQ on {address}", file=sys.stderr)
        return status_of(command, os.environ | {VARIABLE: address})


def status_of(command: list[str], environ: Mapping[str, str]) -> int:
    """The command's status; its 3 becomes 1, because 3 has a meaning here."""
    status = subprocess.run(command, env=environ, check=False).returncode
    return 1 if status == 3 else status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
