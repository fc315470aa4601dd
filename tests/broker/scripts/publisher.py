"""A long-lived publisher: it processes events of the connection between its messages, and reads back what it wrote."""

import os

import pika
from pika.exceptions import AMQPConnectionError, ChannelClosed

parameters = pika.URLParameters(os.environ["AMQP_URL"] + "?heartbeat=30&blocked_connection_timeout=10")
try:
    connection = pika.BlockingConnection(parameters)
except AMQPConnectionError:
    print("no broker")
    raise
channel = connection.channel()
channel.queue_declare(queue="scripts.stats", arguments={"x-max-length": 3})
for number in range(5):
    channel.basic_publish(
        "", "scripts.stats", b"%d" % number, pika.BasicProperties(headers={"number": number}, timestamp=number)
    )
    connection.process_data_events()
    connection.sleep(0.01)
while True:
    method, properties, body = channel.basic_get("scripts.stats")
    if method is None:
        break
    print(method.delivery_tag, method.message_count, properties.headers, properties.timestamp, body)
    channel.basic_nack(method.delivery_tag, requeue=False)
channel.queue_delete("scripts.stats")
try:
    channel.basic_ack(99)
    channel.queue_declare("scripts.stats", passive=True)
except ChannelClosed as error:
    print(type(error).__name__, error.reply_code)
connection.close()
