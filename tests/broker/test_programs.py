"""Whole programs, the same on both sides. For this process one line differs: `from manytail import broker as pika`."""

import os
import re
import sys
from pathlib import Path

import pytest
from support.process import run_command

from broker.sides import SERVER

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "scripts"
PRINTED = {
    "orders": """\
unroutable: lost
worked on: 1 2 3 again 4 6 7 again 8 9
failed: 6 crates rejected 1 True
audited: order.0.us order.1.eu order.2.eu order.3.eu order.4.eu order.5.us order.6.eu order.7.eu order.8.eu order.9.eu
refused: 406
""",
    "work_queue": "".join(f" [x] Sent task {number}\n" for number in range(5))
    + "".join(f" [x] Received task {number}{'.' * number} persistent=True\n" for number in range(5))
    + "Interrupted\nleft: 0\n",
    "rpc": f"{[sum(range(n)) for n in range(200, 0, -1)][::20]}\n",
}
ADDRESSES = [pytest.param("", id="manytail")] + (
    [pytest.param(SERVER, id="server", marks=pytest.mark.rabbitmq)] if SERVER else []
)


THEIRS, OURS = "import pika\n", "from manytail import broker as pika\n"


def pikas(name: str) -> str:
    """The text of a program for a server. The example's text in the repository is the one for this process."""
    if name == "orders":
        return (ROOT / "examples/orders.py").read_text().replace(OURS, THEIRS)
    return (SCRIPTS / f"{name}.py").read_text()


def ours(name: str) -> str:
    """Names that are imported from pika's modules are imported from our modules of the same name."""
    return re.sub(r"^from pika\b", "from manytail.broker", pikas(name).replace(THEIRS, OURS), flags=re.MULTILINE)


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("name", PRINTED)
def test_a_program_does_the_same_on_both_sides(name: str, address: str, tmp_path: Path) -> None:
    program = tmp_path / f"{name}.py"
    program.write_text(pikas(name) if address else ours(name))
    environ = os.environ | {"AMQP_URL": f"amqp://guest:guest@{address or 'localhost'}/%2F"}
    ran = run_command(sys.executable, "-W", "error", program, env=environ)
    assert (ran.stdout, ran.returncode) == (PRINTED[name], 0), ran.stderr


@pytest.mark.parametrize("name", PRINTED)
def test_one_line_is_another(name: str) -> None:
    lines = list(zip(pikas(name).splitlines(), ours(name).splitlines(), strict=True))
    changed = [line for line, other in lines if line != other]
    assert changed[0] == THEIRS.strip()
    assert all(line.startswith("from pika.") for line in changed[1:])
    assert "manytail" not in pikas(name)


def test_a_program_that_closes_nothing_ends() -> None:
    code = """
from manytail import broker as pika
channel = pika.BlockingConnection().channel()
channel.queue_declare("q", arguments={"x-message-ttl": 3_600_000})
channel.basic_consume("q", lambda channel, method, properties, body: print(body))
channel.basic_publish("", "q", "hello")
channel.connection.process_data_events(None)
"""
    ran = run_command(sys.executable, "-W", "error", "-c", code)
    assert (ran.stdout, ran.stderr, ran.returncode) == ("b'hello'\n", "", 0)
