"""Logs through a topic exchange to two queues with generated names. A generator with a timeout reads them; errors are
caught by name."""

import os

import pika

with pika.BlockingConnection([pika.URLParameters(os.environ["AMQP_URL"])]) as connection:
    channel = connection.channel()
    channel.exchange_declare(
        exchange="scripts.logs", exchange_type=pika.exchange_type.ExchangeType.topic, auto_delete=True
    )
    queues = {}
    for pattern in ("kern.*", "*.critical"):
        queues[pattern] = channel.queue_declare(queue="", exclusive=True).method.queue
        channel.queue_bind(exchange="scripts.logs", queue=queues[pattern], routing_key=pattern)
    channel.confirm_delivery()
    for key in ("kern.info", "kern.critical", "mail.critical", "mail.info"):
        try:
            channel.basic_publish(
                "scripts.logs",
                key,
                f"about {key}".encode(),
                pika.BasicProperties(content_type="text/plain"),
                mandatory=True,
            )
        except pika.exceptions.UnroutableError as error:
            print("unroutable:", *(message.method.routing_key for message in error.messages))
    for pattern, queue in queues.items():
        for method, properties, body in channel.consume(queue, inactivity_timeout=60):
            if method is None:
                break
            print(pattern, method.delivery_tag, method.routing_key, properties.content_type, body.decode())
            channel.basic_ack(method.delivery_tag)
            if body.endswith(b"critical") and method.delivery_tag % 2 == 0:
                break
        print("requeued:", channel.cancel())
    other = connection.channel()
    try:
        other.queue_declare("scripts.nobody", passive=True)
    except pika.exceptions.ChannelClosedByBroker as error:
        print("closed:", error.reply_code, other.is_open, channel.is_open, connection.is_open)
    try:
        other.queue_declare("scripts.nobody")
    except pika.exceptions.ChannelWrongStateError:
        print("the channel is closed")
