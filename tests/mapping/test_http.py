"""`Retry.http` against a real server, with each client that is installed; and what it reads in errors."""

import asyncio
import errno
import importlib
import inspect
import os
import pickle
import re
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from typing import Any, NamedTuple

import pytest
from support.maps import mapped
from support.threads import DEADLINE

from manytail import Retry, RetryLater
from manytail.mapping._http import retry_after

pytestmark = pytest.mark.thread_unsafe(reason="a server of its own for each test")

SOON = 0.2  # seconds; the timeout of a request that is not answered


# ---------------------------------------------------------------------------------------------------- the server
class Server:
    """Answers the requests of a path with its steps, one after the other, then with 200. A step is a status with
    headers, "hang": there is no answer before the test ends, or bytes: after these the connection is closed."""

    def __init__(self) -> None:
        self.steps: dict[str, list[Any]] = {}
        self.asked: list[str] = []
        self.ended = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.path.split("/")[1]
                server.asked.append(name)
                steps = server.steps.get(name, [])
                step = steps.pop(0) if steps else (200, {})
                if step == "hang":
                    server.ended.wait(DEADLINE)
                if isinstance(step, (str, bytes)):
                    self.wfile.write(step if isinstance(step, bytes) else b"")
                    self.connection.shutdown(socket.SHUT_RDWR)
                    self.close_connection = True
                    return
                status, headers = step
                body = b'{"object": "list", "data": []}'
                self.send_response(status)
                for header, value in {
                    "Content-Type": "application/json",
                    "Content-Length": len(body),
                    **headers,
                }.items():
                    self.send_header(header, str(value))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET

            def log_message(self, *arguments: object) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


# ---------------------------------------------------------------------------------------------------- the clients
def ask_urllib(url: str, timeout: float = DEADLINE) -> None:
    try:
        with urllib.request.urlopen(f"{url}/models", timeout=timeout) as answer:
            answer.read()
    except urllib.error.HTTPError as error:
        error.close()
        raise


def ask_requests(url: str, timeout: float = DEADLINE) -> None:
    requests = importlib.import_module("requests")
    with requests.get(f"{url}/models", timeout=timeout) as answer:
        answer.raise_for_status()


def ask_httpx(url: str, timeout: float = DEADLINE) -> None:
    httpx = importlib.import_module("httpx")
    httpx.get(f"{url}/models", timeout=timeout).raise_for_status()


def ask_urllib3(url: str, timeout: float = DEADLINE) -> None:
    urllib3 = importlib.import_module("urllib3")
    answer = urllib3.request("GET", f"{url}/models", timeout=timeout, retries=False)
    if answer.status != 200:
        raise StatusError(answer)


class StatusError(Exception):
    """urllib3 raises none of its own."""

    def __init__(self, answer: Any) -> None:
        super().__init__(answer.status)
        self.response = answer


async def ask_httpx_async(url: str, timeout: float = DEADLINE) -> None:
    httpx = importlib.import_module("httpx")
    async with httpx.AsyncClient(timeout=timeout) as client:
        (await client.get(f"{url}/models")).raise_for_status()


async def ask_aiohttp(url: str, timeout: float = DEADLINE) -> None:
    # aiohttp itself makes a GET again whose connection broke
    aiohttp = importlib.import_module("aiohttp")
    limit = aiohttp.ClientTimeout(total=timeout)
    async with aiohttp.ClientSession(timeout=limit) as session, session.post(f"{url}/models") as answer:
        answer.raise_for_status()
        await answer.read()


def ask_openai(url: str, timeout: float = DEADLINE) -> None:
    openai = importlib.import_module("openai")
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=timeout) as client:
        client.models.list()


ALL = {
    "urllib": ask_urllib, "urllib3": ask_urllib3, "requests": ask_requests, "httpx": ask_httpx,
    "httpx.AsyncClient": ask_httpx_async, "aiohttp": ask_aiohttp, "openai": ask_openai,
}  # fmt: skip
CLIENTS = {name: ask for name, ask in ALL.items() if find_spec(name.partition(".")[0])}  # some lack a wheel elsewhere
each_client = pytest.mark.parametrize("ask", CLIENTS.values(), ids=CLIENTS)


def attempts(ask: Callable[[str], Any], url: str, **options: Any) -> int:
    """Ask once by a map. Returns the attempts that it took; deferred calls are none."""

    def fn(url: str, delivery: Any) -> int:
        ask(url)
        return int(delivery.attempt)

    async def fn_async(url: str, delivery: Any) -> int:
        await ask(url)
        return int(delivery.attempt)

    (took,) = mapped(fn_async if inspect.iscoroutinefunction(ask) else fn, [url], **options)
    return int(took)


RETRY = Retry.http(2, backoff=0.001)


def failure(ask: Any, url: str) -> str:
    """What the map notes at the error of a request that fails."""
    try:
        attempts(ask, url, retry=RETRY)
    except Exception as error:
        return re.sub(r".* (?=failed after)", "", error.__notes__[-1])
    return "no failure"


PAST = format_datetime(datetime.now(UTC) - timedelta(hours=1), usegmt=True)
LATER = [{"Retry-After": "0"}, {"Retry-After": PAST}, {"retry-after-ms": "1.5", "Retry-After": "3600"}]
# What the server does before it answers well, the arguments of the policy, and the attempts that it takes.
STEPS: dict[str, tuple[list[Any], dict[str, Any], int]] = {
    "Retry-After": ([(status, headers) for status in (429, 503) for headers in LATER], {}, 1),
    "no Retry-After": ([(500, {}), (429, {"Retry-After": "soon"})], {}, 3),
    "another error": ([(404, {})], {"also": Exception}, 2),
    "another status": ([(404, {})], {"statuses": [404]}, 2),
    "a broken connection": ([b""], {}, 2),
    "half of an answer": ([b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"], {}, 2),
    "no answer in time": (["hang"], {}, 2),
    "no HTTP": ([b"nonsense\r\n\r\n"], {}, 2),
}


@each_client
@pytest.mark.parametrize(("steps", "arguments", "took"), STEPS.values(), ids=STEPS)
def test_a_request_is_made_again(
    server: Server, ask: Any, steps: list[Any], arguments: dict[str, Any], took: int
) -> None:
    """Where the answer is no HTTP, aiohttp raises an error of status 400."""
    if ask is ask_aiohttp and b"nonsense\r\n\r\n" in steps:
        arguments = {"statuses": [400]}
    asks = partial(ask, timeout=SOON) if "hang" in steps else ask
    server.steps["a"] = [*steps]
    assert attempts(asks, f"{server.url}/a", retry=Retry.http(2, backoff=0.001, **arguments)) == took
    assert server.asked == ["a"] * (len(steps) + 1)


@each_client
def test_another_status_fails_at_once(server: Server, ask: Any) -> None:
    server.steps["a"] = [(404, {"Retry-After": "0"})]
    with pytest.raises(Exception, match="404"):
        attempts(ask, f"{server.url}/a", retry=RETRY)
    assert server.asked == ["a"]


def where_nobody_listens(server: Server) -> str:
    """The port was free a moment ago."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


FAILING: dict[str, tuple[Callable[[Server], str], int]] = {
    "nobody listens": (where_nobody_listens, 3),
    "a host without an address": (lambda server: "http://nothing.invalid", 3),
    "a server that speaks no TLS": (lambda server: server.url.replace("http:", "https:"), 3),
    "no request": (lambda server: "gopher://127.0.0.1", 1),
}


@each_client
@pytest.mark.parametrize(("where", "attempts"), FAILING.values(), ids=FAILING)
def test_a_connection_that_fails_is_an_attempt_and_what_is_no_request_fails_at_once(
    server: Server, ask: Any, where: Callable[[Server], str], attempts: int
) -> None:
    assert failure(ask, f"{where(server)}/a") == f"failed after {attempts} attempt{'s' if attempts > 1 else ''}"


@pytest.mark.skipif("httpx" not in CLIENTS, reason="no httpx here")
def test_a_proxy_that_refuses_is_an_attempt(server: Server) -> None:
    def ask(url: str) -> None:
        importlib.import_module("httpx").get(url, proxy=server.url)

    assert failure(ask, "https://nothing.invalid/a") == "failed after 3 attempts"


# ---------------------------------------------------------------------------------------------------- what is read
class Answer(NamedTuple):
    headers: Any


NOON = "Tue, 24 Nov 2026 12:00:00 GMT"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        (None, None),
        (["Retry-After"], None),
        ({"Retry-After": "7"}, 7.0),
        ({"RETRY-AFTER": 2.5}, 2.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after-ms": "much", "retry-after": "9"}, 9.0),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "Tue, 99 Nov 2026"}, None),
        ({"retry-after": "Tue, 24 Nov 2026 12:00:30 GMT", "date": NOON}, 30.0),
        ({"retry-after": "Tue, 24 Nov 2026 12:00:30 -0000", "date": NOON}, 30.0),
        ({"retry-after": "Tue, 24 Nov 2026 13:00:30 +0100", "date": NOON}, 30.0),
        ({"retry-after": "Tue, 24 Nov 2026 11:00:00 GMT", "date": NOON}, 0.0),
    ],
)
def test_what_retry_after_says(headers: Any, seconds: float | None) -> None:
    assert retry_after(Answer(headers)) == seconds


def test_a_date_counts_from_now_where_the_server_does_not_say_its_own() -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    seconds = retry_after(Answer({"retry-after": later, "date": "today"}))
    assert seconds is not None
    assert 3_500 < seconds <= 3_600


class SdkError(Exception):
    """An error whose attributes are set by a test."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        vars(self).update(attributes)


class Raises(Exception):
    @property
    def response(self) -> Any:
        raise RuntimeError("not read yet")


def answer(error: BaseException, retry: Retry = RETRY) -> bool | RetryLater:
    return retry.answer(error)


def test_a_status_is_found_where_clients_keep_it() -> None:
    busy = HTTPStatus.SERVICE_UNAVAILABLE
    for found in (
        SdkError(status=503),
        SdkError(code=busy),
        SdkError(status_code=503),
        SdkError(response=SdkError(status=503)),
        SdkError(status_code=True, code=503),
    ):
        assert answer(found) is True
    broken = SdkError(code=7)  # no status, such as gRPC's codes
    broken.__cause__ = ConnectionResetError()
    assert answer(broken) is True
    refused = SdkError(status=404)
    refused.__cause__ = ConnectionResetError()
    assert answer(refused) is False
    wrapped = SdkError(code="rate_limit_exceeded", response=None)
    wrapped.__cause__ = SdkError(status=429, headers={"Retry-After": "2"})
    later = answer(wrapped)
    assert isinstance(later, RetryLater)
    assert later.after == 2.0
    for other in (
        SdkError(status=True),
        SdkError(status=0, code=503),
        SdkError(code=1006),
        SdkError(status=404),
        Raises(),
    ):
        assert answer(other) is False


def test_headers_that_cannot_be_read_say_nothing() -> None:
    class Closed:
        def items(self) -> Any:
            raise RuntimeError("the answer is closed")

    assert retry_after(SdkError(headers=Closed())) is None


def test_retry_after_is_obeyed_though_also_names_the_error() -> None:
    busy = SdkError(status=429, headers={"Retry-After": "2"})
    assert isinstance(answer(busy, Retry.http(also=SdkError)), RetryLater)


def test_a_chain_of_causes_ends() -> None:
    error, cause = SdkError(), SdkError()
    error.__cause__, cause.__cause__ = cause, error
    assert answer(error) is False
    cause.__cause__ = ConnectionResetError()
    assert answer(error) is True


def test_what_is_no_exception_of_a_request_fails_at_once() -> None:
    for error in (
        SystemExit(503),
        KeyboardInterrupt(),
        asyncio.CancelledError(),
        ValueError(),
        FileNotFoundError(2, "a"),
    ):
        assert answer(error) is False
        assert answer(error, Retry.http(also=type(error))) is True
    for number in (errno.ENETDOWN, errno.ENETUNREACH, errno.ENETRESET, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL):
        assert answer(OSError(number, os.strerror(number))) is True
    later = answer(ValueError(), Retry.http(also=lambda error: RetryLater(3)))
    assert isinstance(later, RetryLater)


def test_equal_arguments_make_equal_retries() -> None:
    made = Retry.http(3, statuses=[503, 429], also=OSError)
    assert made == Retry.http(3, statuses=(429, 503, 503), also=OSError)
    assert Retry.http(3, statuses=[508, 500]) == Retry.http(3, statuses=[500, 508])
    assert hash(made) == hash(Retry.http(3, statuses=(429, 503), also=OSError))
    assert made != Retry.http(3, statuses=(429,), also=OSError)
    assert pickle.loads(pickle.dumps(made)) == made
    assert repr(made) == "Retry(3, HttpErrors(statuses=(429, 503), also=OSError), backoff=0.5)"


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"statuses": 503}, TypeError, r"statuses: 503 of type int \(expected: an iterable of HTTP statuses"),
        ({"statuses": "503"}, TypeError, r"statuses: '503' of type str"),
        ({"statuses": [5.0]}, TypeError, r"statuses: 5\.0 of type float"),
        ({"statuses": [True]}, TypeError, r"statuses: True of type bool"),
        ({"statuses": [600]}, ValueError, r"statuses: 600 \(expected: .* ints from 100 to 599\)"),
        ({"also": 404}, TypeError, r"also: 404 of type int \(expected: an exception class"),
        ({"times": -1}, ValueError, r"times: -1 \(expected: an int >= 0\)"),
    ],
)
def test_bad_arguments_are_refused(options: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        Retry.http(**options)
