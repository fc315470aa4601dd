"""A whole program, the same file on both sides."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from broker.sides import SERVER

PROGRAM = Path(__file__).parents[2] / "examples/orders.py"
PRINTED = """\
unroutable: lost
worked on: 1 2 3 again 4 6 7 again 8 9
failed: 6 crates rejected 1 True
audited: order.0.us order.1.eu order.2.eu order.3.eu order.4.eu order.5.us order.6.eu order.7.eu order.8.eu order.9.eu
refused: 406
"""


ADDRESSES = [pytest.param("", id="manytail")] + ([pytest.param(SERVER, id="server", marks=pytest.mark.rabbitmq)] if SERVER else [])


@pytest.mark.parametrize("address", ADDRESSES)
def test_one_program_does_the_same_on_both(address: str) -> None:
    environ = os.environ | {"MANYTAIL_RABBITMQ": address}
    ran = subprocess.run([sys.executable, "-W", "error", PROGRAM], env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert (ran.stdout, ran.returncode) == (PRINTED, 0), ran.stderr


def test_only_imports_and_connecting_differ() -> None:
    """What is under the `if` is nothing else."""
    text = PROGRAM.read_text()
    branches = re.search(r"^if address.*?(?=^RUN = )", text, re.DOTALL | re.MULTILINE)
    assert branches is not None
    rest = text.replace(branches[0], "")
    assert "pika" not in re.sub(r'""".*?"""', "", rest, flags=re.DOTALL)
    assert "manytail" not in re.sub(r'""".*?"""', "", rest, flags=re.DOTALL)
