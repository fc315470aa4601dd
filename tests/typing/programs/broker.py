"""manytail.broker: pika's names, with types."""

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, assert_type

from manytail import broker as pika

parameters = pika.ConnectionParameters(host="localhost", credentials=pika.PlainCredentials("guest", "guest"))
connection = pika.BlockingConnection([parameters, pika.URLParameters("amqp://localhost")])
channel = connection.channel()
assert_type(channel, pika.Channel)
with pika.Broker() as own, ThreadPoolExecutor() as executor:
    assert_type(own.connect(executor=executor), pika.Connection)
    own.connect(workers=4)  # error: call-arg, reportCallIssue

declared = channel.queue_declare("work", durable=True, arguments={"x-max-length": 10})
assert_type(declared, pika.spec.Method[pika.spec.Queue.DeclareOk])
assert_type(declared.method.message_count, int)
assert_type(channel.queue_delete("work").method, pika.spec.Queue.DeleteOk)
properties = pika.BasicProperties(delivery_mode=pika.DeliveryMode.Persistent, headers={"retry": 1})
assert_type(properties.headers, dict[str, Any] | None)
channel.basic_publish("", "work", b"body", properties, mandatory=True)
method, _, _ = channel.basic_get("work")
assert_type(method, pika.spec.Basic.GetOk | None)
Delivered = tuple[pika.spec.Basic.Deliver, pika.BasicProperties, Any]
assert_type(channel.consume("work"), Generator[Delivered, None, None])
for deliver, _, _ in channel.consume("work", inactivity_timeout=1.0):
    assert_type(deliver, pika.spec.Basic.Deliver | None)


def on_message(
    channel: pika.Channel, method: pika.spec.Basic.Deliver, properties: pika.BasicProperties, body: bytes
) -> None:
    channel.basic_ack(method.delivery_tag)


def on_too_little(channel: pika.Channel) -> None: ...


assert_type(channel.basic_consume("work", on_message), str)
channel.basic_consume("work", lambda channel, method, properties, body: channel.basic_ack(method.delivery_tag))
channel.add_on_return_callback(lambda channel, method, properties, body: print(method.reply_code))

channel.basic_consume("work", on_too_little)  # error: arg-type, reportArgumentType
channel.basic_consume(on_message, "work")  # error: arg-type, reportArgumentType
channel.basic_ack("1")  # error: arg-type, reportArgumentType
channel.basic_consume("work", lambda ch, method, _, body: method.tag)  # error: attr-defined, reportAttributeAccessIssue
channel.queue_declare("work", arguments=["x-max-length"])  # error: arg-type, reportArgumentType
pika.BasicProperties(correlation="1")  # error: call-arg, reportCallIssue

try:
    connection.channel(7)
except pika.exceptions.ChannelClosedByBroker as error:
    assert_type(error.reply_code, int)
