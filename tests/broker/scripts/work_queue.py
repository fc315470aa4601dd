"""A work queue: a publisher, and a worker that acknowledges one task at a time until it is interrupted."""

import os
import signal

import pika

parameters = pika.URLParameters(os.environ["AMQP_URL"])
connection = pika.BlockingConnection(parameters)
channel = connection.channel()
channel.queue_declare(queue="scripts.tasks", durable=True)
for number in range(5):
    channel.basic_publish(
        exchange="",
        routing_key="scripts.tasks",
        body=f"task {number}{'.' * number}",
        properties=pika.BasicProperties(delivery_mode=pika.DeliveryMode.Persistent),
    )
    print(f" [x] Sent task {number}")
connection.close()


def callback(ch, method, properties, body):
    print(
        f" [x] Received {body.decode()} persistent={properties.delivery_mode == pika.spec.PERSISTENT_DELIVERY_MODE}",
        flush=True,
    )
    ch.basic_ack(delivery_tag=method.delivery_tag)
    if body.count(b".") == 4:
        signal.raise_signal(signal.SIGINT)


connection = pika.BlockingConnection(parameters)
channel = connection.channel()
channel.queue_declare(queue="scripts.tasks", durable=True)
channel.basic_qos(prefetch_count=1)
try:
    channel.basic_consume(queue="scripts.tasks", on_message_callback=callback)
    channel.start_consuming()
except KeyboardInterrupt:
    channel.stop_consuming()
    print("Interrupted")
print("left:", channel.queue_delete("scripts.tasks").method.message_count)
connection.close()
