"""Pages that answer questions: each option has an anchor, each message is real, what is generated is up to date."""

import ast
import functools
import inspect
import re
import sys
from pathlib import Path

import pytest
from support.process import run_command

from manytail import concurrent_map

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
TROUBLES = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
SYMPTOMS = re.findall(r"^### (.*)$", TROUBLES, re.MULTILINE)
MESSAGES = [found for found in SYMPTOMS if re.match(r"`\w+Error|`\w+(?:Exceeded|Open|Failures|Unavailable)", found)]
OURS = [message for message in MESSAGES if not message.startswith("`ModuleNotFoundError")]


def test_what_is_made_from_elsewhere_is_up_to_date():
    script = ROOT / "tools" / "docs_pages.py"
    done = run_command(sys.executable, script, "--check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_option_has_an_anchor():
    headings = re.findall(r"^## (\w+)$", (DOCS / "reference" / "options.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings == list(inspect.signature(concurrent_map).parameters)[2:]


def test_there_are_twenty_troubles_each_with_a_cause_and_something_to_do():
    entries = re.split(r"^### ", TROUBLES, flags=re.MULTILINE)[1:]
    assert len(entries) >= 20
    assert len(OURS) >= 20
    assert [entry.splitlines()[0] for entry in entries if "**Cause:**" not in entry or "**Do:**" not in entry] == []


@functools.cache
def said() -> str:
    """Every text of the package's Python sources, a line each."""
    texts = []
    for path in (ROOT / "python" / "manytail").rglob("*.py"):
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        texts += [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return "\n".join(texts)


def fragments(message: str) -> list[str]:
    """What a message says always: not its class, an option's name, or what differs."""
    text = re.sub(r"^\w+: (?:\w+: (?=\.\.\.))?", "", message[1:-1])
    parts = re.split(r"\.\.\.|\(expected: ", text)
    return [part.strip(" ,:)") for part in parts if len(part.strip(" ,:)")) >= 5]


@pytest.mark.parametrize("message", OURS)
def test_a_message_is_one_of_ours(message):
    texts = said()
    assert fragments(message)
    assert [part for part in fragments(message) if part not in texts] == []


def test_a_message_that_nothing_says_is_seen():
    assert fragments("`ValueError: per_key: ... (expected: key was given)`") == ["key was given"]
    assert "key was given" not in said()
