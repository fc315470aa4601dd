"""pika's names and signatures, so that a program changes its imports and nothing else."""

import importlib
import inspect
from pathlib import Path
from typing import Any

import pika
import pytest
from pika import exceptions as theirs
from pika import spec
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection

import manytail
from manytail import broker
from manytail.broker import BasicProperties, Broker, Channel, ExchangeType, ReturnedMessage, exceptions
from manytail.broker import spec as ours_spec

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "from-rabbitmq.md").read_text() + (DOCS / "design" / "broker.md").read_text()  # the rare differences
# Channels are made by Connection.channel. Credentials are not sent anywhere.
LEFT_OUT = {"BlockingChannel": {"__init__"}, "PlainCredentials": {"response_for", "erase_credentials"}}
SAME = (
    (BlockingChannel, Channel),
    (BlockingConnection, broker.BlockingConnection),
    (pika.ConnectionParameters, broker.ConnectionParameters),
    (pika.URLParameters, broker.URLParameters),
    (pika.PlainCredentials, broker.PlainCredentials),
)


def public(of: type) -> set[str]:
    """Methods and properties."""
    kept = {"__init__", "__enter__", "__exit__", "__int__"}
    named = {name: value for name, value in vars(of).items() if not name.startswith("_") or name in kept}
    return {name for name, value in named.items() if inspect.isfunction(value) or isinstance(value, property)}


def shape(call: Any) -> list[tuple[str, Any, Any]]:
    """Names, kinds and defaults. Annotations may differ, and an enum equals its value."""
    parameters = inspect.signature(call).parameters.values()
    return [(each.name, each.kind, _default(each.default)) for each in parameters]


def _default(value: Any) -> Any:
    """In both, a class is the default of a parameter that was not passed."""
    return value.__name__ if inspect.isclass(value) else getattr(value, "value", value)


PAIRS = [
    (theirs_, name, ours)
    for theirs_, ours in SAME
    for name in sorted(public(theirs_) - LEFT_OUT.get(theirs_.__name__, set()))
]


@pytest.mark.parametrize(("pikas", "name", "ours"), PAIRS, ids=lambda value: getattr(value, "__name__", value))
def test_everything_is_there_with_the_same_signature(pikas: type, name: str, ours: type) -> None:
    wanted, have = inspect.getattr_static(pikas, name), inspect.getattr_static(ours, name)
    if isinstance(wanted, property):
        assert not callable(have)
    else:
        assert shape(have) == shape(wanted)


def test_properties_take_the_fourteen_parameters() -> None:
    assert shape(BasicProperties.__init__) == shape(pika.BasicProperties.__init__)
    given = {name: f"{name} value" for name, _, _ in shape(BasicProperties.__init__)[1:]}
    made = BasicProperties(**given)  # type: ignore[arg-type]
    assert {name: getattr(made, name) for name in given} == given
    assert made == BasicProperties(**given)  # type: ignore[arg-type]
    assert made != BasicProperties()
    assert BasicProperties(delivery_mode=pika.DeliveryMode.Persistent).delivery_mode == 2
    assert BasicProperties().headers is None


@pytest.mark.parametrize("name", exceptions.__all__)
def test_exceptions_have_pikas_bases(name: str) -> None:
    ours, pikas = getattr(exceptions, name), getattr(theirs, name)
    lineage = [base.__name__ for base in pikas.__mro__]
    assert [base.__name__ for base in ours.__mro__ if base.__name__ in lineage] == lineage


def test_the_docs_name_the_exceptions_that_are_left_out() -> None:
    kinds = {name for name, kind in vars(theirs).items() if inspect.isclass(kind) and issubclass(kind, Exception)}
    assert [name for name in sorted(kinds - set(exceptions.__all__)) if f"`{name}`" not in PAGE] == []


def test_wrong_states_are_closed_errors_too() -> None:
    assert issubclass(exceptions.ChannelWrongStateError, manytail.ClosedError)
    assert issubclass(exceptions.ConnectionWrongStateError, manytail.ClosedError)


def test_what_exceptions_carry() -> None:
    for name in (
        "ChannelClosedByBroker",
        "ConnectionClosedByBroker",
        "ChannelClosedByClient",
        "ConnectionClosedByClient",
    ):
        error = getattr(exceptions, name)(404, "gone")
        assert (error.reply_code, error.reply_text, error.args) == (404, "gone", (404, "gone"))
        assert repr(error) == repr(getattr(theirs, name)(404, "gone"))
    for name in ("UnroutableError", "NackError"):
        assert getattr(exceptions, name)(["message"]).messages == ["message"]


ANSWERS = [
    (group, name)
    for group in ("Basic", "Queue", "Exchange", "Tx")
    for name in vars(getattr(ours_spec, group))
    if not name.startswith("_")
]


@pytest.mark.parametrize(("group", "name"), ANSWERS)
def test_answers_have_pikas_fields(group: str, name: str) -> None:
    ours = getattr(getattr(ours_spec, group), name)()
    pikas = getattr(getattr(spec, group), name)()
    assert set(ours.__slots__) == set(vars(pikas)) - {"ticket"}
    assert ours.NAME == pikas.NAME
    assert ours == type(ours)()
    assert repr(ours)


# Modules of pika, and the names in them that need an event loop, a socket or a frame.
MODULES = {
    "adapters": {"AsyncioConnection", "BaseConnection", "IOLoop", "SelectConnection"},
    "adapters.blocking_connection": set(),
    "connection": {"SSLOptions", "PRODUCT"},
    "credentials": set(),
    "delivery_mode": set(),
    "exchange_type": set(),
    "frame": {"Body", "Frame", "Header", "Heartbeat", "ProtocolHeader", "decode_frame"},
    "spec": {"Access", "Channel", "Confirm", "Connection", "PROTOCOL_VERSION", "has_content"},
}  # fmt: skip


def defined(module: Any) -> set[str]:
    """The classes, functions and constants of one of pika's modules that are its own, or that it is imported for."""
    own = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and len(name) > 1 and getattr(value, "__module__", "").startswith(module.__name__)
    }
    return own | {name for name in vars(module) if name.isupper() and name not in ("LOGGER", "T", "TYPE_CHECKING")}


@pytest.mark.parametrize("name", MODULES)
def test_modules_have_pikas_names(name: str) -> None:
    """Or the page says that they are left out."""
    pikas, ours = importlib.import_module(f"pika.{name}"), importlib.import_module(f"manytail.broker.{name}")
    missing = {each for each in defined(pikas) if not hasattr(ours, each)}
    framing = {each for each in missing if each.startswith("FRAME_")}
    assert missing - framing == MODULES[name]
    assert [each for each in sorted(missing - framing) if f"`{each}`" not in PAGE] == []
    for each in defined(pikas) - missing:
        if isinstance(getattr(pikas, each), int | str):
            assert getattr(ours, each) == getattr(pikas, each)


def test_the_names_are_those_of_a_version_of_pika() -> None:
    assert broker.__version__.split(".")[:2] == pika.__version__.split(".")[:2]
    assert broker.__version__ in PAGE


def test_names_are_where_programs_import_them_from() -> None:
    assert broker.adapters.blocking_connection.BlockingChannel is Channel
    assert broker.connection.ConnectionParameters is broker.ConnectionParameters
    assert broker.connection.URLParameters is broker.URLParameters
    assert broker.credentials.PlainCredentials is broker.PlainCredentials
    assert broker.frame.Method is ours_spec.Method
    assert broker.delivery_mode.DeliveryMode is broker.DeliveryMode
    assert type(pika.frame.Method(1, spec.Queue.PurgeOk())).__name__ == broker.frame.Method.__name__


def test_what_a_program_names_is_there() -> None:
    """`import pika` of pika 1.4, except what needs an event loop or a network; and the modules that programs use."""
    left_out = {"AMQPConnectionWorkflow", "BaseConnection", "SelectConnection", "SSLOptions"}
    assert set(pika.__all__) - left_out <= set(broker.__all__)
    assert {name: broker.spec.__dict__[name] for name in ("TRANSIENT_DELIVERY_MODE", "PERSISTENT_DELIVERY_MODE")} == {
        "TRANSIENT_DELIVERY_MODE": spec.TRANSIENT_DELIVERY_MODE,
        "PERSISTENT_DELIVERY_MODE": spec.PERSISTENT_DELIVERY_MODE,
    }
    assert [(mode.name, mode.value) for mode in broker.DeliveryMode] == [
        (mode.name, mode.value) for mode in pika.DeliveryMode
    ]
    ours, pikas = broker.exchange_type.ExchangeType, pika.exchange_type.ExchangeType
    assert {kind.name: kind.value for kind in ours} == {kind.name: kind.value for kind in pikas}
    assert broker.spec.BasicProperties is BasicProperties


def test_exchange_types_of_both_are_taken() -> None:
    with Broker() as made, made.connect(max_workers=1) as connection:
        channel = connection.channel()
        for kind in [*ExchangeType, *pika.exchange_type.ExchangeType]:
            channel.exchange_declare(f"x-{type(kind).__module__}-{kind.value}", kind)
        channel.queue_declare("q")
        channel.basic_publish("", "q", b"1", pika.BasicProperties(headers={"a": 1}, priority=3))
        _, properties, _ = channel.basic_get("q")
        assert properties == BasicProperties(headers={"a": 1}, priority=3)


def test_a_returned_message_has_pikas_fields() -> None:
    from pika.adapters.blocking_connection import ReturnedMessage as Pikas

    assert shape(ReturnedMessage.__init__) == shape(Pikas.__init__)
    assert set(ReturnedMessage.__slots__) == set(Pikas.__slots__)
