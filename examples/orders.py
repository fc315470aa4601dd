"""Orders through exchanges, in this process. With `import pika` instead it uses a RabbitMQ server, at AMQP_URL."""

import os
import uuid

from manytail import broker as pika

RUN = uuid.uuid4().hex[:8]  # names of this run: a server may keep those of an earlier one
ORDERS, WORK, FAILED, AUDIT = (f"{name}-{RUN}" for name in ("orders", "work", "failed", "audit"))


def declare(channel: pika.channel.Channel) -> None:
    """Orders by region, failed orders kept, all orders audited."""
    channel.exchange_declare(ORDERS, "topic")
    channel.queue_declare(FAILED)
    channel.queue_declare(WORK, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": FAILED})
    channel.queue_declare(AUDIT)
    channel.queue_bind(WORK, ORDERS, "order.*.eu")
    channel.queue_bind(AUDIT, ORDERS, "#")


def publish(channel: pika.channel.Channel) -> None:
    """Confirmed and mandatory: an order that no queue gets raises here."""
    channel.confirm_delivery()
    for number in range(10):
        region = "eu" if number % 5 else "us"
        properties = pika.BasicProperties(message_id=str(number), headers={"retry": number % 4 == 3})
        channel.basic_publish(
            ORDERS, f"order.{number}.{region}", f"{number} crates".encode(), properties, mandatory=True
        )
    try:
        channel.basic_publish("", f"nobody-{RUN}", b"lost", mandatory=True)
    except pika.exceptions.UnroutableError as error:
        print("unroutable:", error.messages[0].body.decode())


def work(channel: pika.channel.Channel) -> None:
    """Eight orders are for Europe: one is tried twice, one is rejected."""
    done: list[tuple[str | None, bool]] = []

    def on_order(
        channel: pika.channel.Channel, method: pika.spec.Basic.Deliver, properties: pika.BasicProperties, body: bytes
    ) -> None:
        headers = properties.headers or {}
        if headers["retry"] and not method.redelivered:
            channel.basic_nack(method.delivery_tag, requeue=True)
            return
        if body == b"6 crates":
            channel.basic_reject(method.delivery_tag, requeue=False)
        else:
            channel.basic_ack(method.delivery_tag)
        done.append((properties.message_id, method.redelivered))
        if len(done) == 8:
            channel.stop_consuming()

    channel.basic_qos(prefetch_count=1)
    channel.basic_consume(WORK, on_order)
    channel.start_consuming()
    print("worked on:", *(f"{number}{' again' if again else ''}" for number, again in done))


def look(channel: pika.channel.Channel) -> None:
    """What is left, one by one."""
    method, properties, body = channel.basic_get(FAILED, auto_ack=True)
    assert method is not None
    death = properties.headers["x-death"][0]
    print("failed:", body.decode(), death["reason"], death["count"], method.routing_key == FAILED)
    audited: list[str] = []
    for deliver, _, _ in channel.consume(AUDIT, auto_ack=True, inactivity_timeout=30):
        assert deliver is not None, "nothing came for 30 seconds"
        audited.append(deliver.routing_key)
        if len(audited) == 10:
            break
    channel.cancel()
    print("audited:", *audited)


def refuse(connection: pika.BlockingConnection) -> None:
    """An error closes a channel, not the connection."""
    try:
        connection.channel().queue_declare(WORK, passive=False, durable=True)
    except pika.exceptions.ChannelClosedByBroker as error:
        print("refused:", error.reply_code)


def main() -> None:
    with pika.BlockingConnection(pika.URLParameters(os.environ.get("AMQP_URL", "amqp://localhost/%2F"))) as connection:
        channel = connection.channel()
        declare(channel)
        publish(channel)
        work(connection.channel())
        look(channel)
        refuse(connection)
        for queue in (WORK, FAILED, AUDIT):
            channel.queue_delete(queue)
        channel.exchange_delete(ORDERS)


main()
