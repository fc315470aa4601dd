"""README.md: it has a picture, and its program with limits does what it says, also if it is killed."""

import os
import re
import subprocess
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.process import environment

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
(PROGRAM,) = [program for program in PROGRAMS if "remember=" in program]
URLS = [f"http://host{n % 3}.example/{n}" for n in range(200)]


def test_nothing_is_said_to_be_released():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    assert [page.name for page in pages if re.search(r"pip install ['\"]?manytail", page.read_text("utf-8"))] == []


def test_its_pictures_are_drawn_with_names_on_both_axes():
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+\.svg)\)", README)
    assert pictures
    for picture in pictures:
        drawn = ElementTree.parse(ROOT / picture).getroot()
        words = {found.text for found in drawn.iter("{http://www.w3.org/2000/svg}text")}
        assert {"seconds", "calls in flight"} <= words


@pytest.fixture
def web():
    """Stands for the Internet: a proxy that answers each URL with itself, refuses the fifth request, and counts."""
    answered: Counter[str] = Counter()
    many = threading.Event()

    class Proxy(BaseHTTPRequestHandler):
        asked = 0

        def do_GET(self):
            Proxy.asked += 1
            refused = Proxy.asked == 5
            self.send_response(429 if refused else 200)
            self.send_header("Retry-After", "0")
            self.end_headers()
            self.wfile.write(self.path.encode())
            if not refused:
                answered[self.path] += 1
            if len(answered) >= 120:
                many.set()

        def log_message(self, *arguments):
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        server.daemon_threads = True
        server.handle_error = lambda *arguments: None  # a client that was killed does not read
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", answered, many
        server.shutdown()
        thread.join()


def start(folder: Path, proxy: str) -> subprocess.Popen[str]:
    settings = {name: value for name, value in environment().items() if name.lower() != "no_proxy"}
    settings |= {"http_proxy": proxy, "HTTP_PROXY": proxy}
    return subprocess.Popen([sys.executable, "program.py"], cwd=folder, env=settings, stdout=subprocess.PIPE, text=True)


def test_its_program_survives_a_kill_and_pays_little_twice(tmp_path, web):
    proxy, answered, many = web
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    (tmp_path / "urls.txt").write_text("\n".join(URLS), encoding="utf-8")
    with start(tmp_path, proxy) as first:
        assert many.wait(60)
        first.kill()
    before = answered.copy()
    with start(tmp_path, proxy) as second:
        printed, _ = second.communicate(timeout=60)
    assert second.returncode == 0
    assert printed.splitlines() == [f"{url} {len(url)}" for url in URLS]      # all of them, in order
    assert set(answered) == set(URLS)
    assert len(before) < len(URLS)
    assert 0 < answered.total() - len(URLS) < len(before)                     # some are paid for twice, most are not
    assert os.path.exists(tmp_path / "run.db")
