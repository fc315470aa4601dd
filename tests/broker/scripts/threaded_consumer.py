"""A consumer that gives each message its own thread, which acks through add_callback_threadsafe; a timer ends it."""

import functools
import os
import threading

import pika

done = []


def ack_message(ch, delivery_tag):
    if ch.is_open:
        ch.basic_ack(delivery_tag)


def do_work(ch, delivery_tag, body):
    done.append(body)
    ch.connection.add_callback_threadsafe(functools.partial(ack_message, ch, delivery_tag))


def on_message(ch, method, properties, body, args):
    thread = threading.Thread(target=do_work, args=(ch, method.delivery_tag, body))
    thread.start()
    args.append(thread)


connection = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"]))
channel = connection.channel()
channel.exchange_declare(exchange="scripts.direct", exchange_type="direct", auto_delete=True)
channel.queue_declare(queue="scripts.threads", auto_delete=True)
channel.queue_bind(queue="scripts.threads", exchange="scripts.direct", routing_key="standard_key")
channel.basic_qos(prefetch_count=4)
threads = []
channel.basic_consume("scripts.threads", functools.partial(on_message, args=threads))
for number in range(20):
    channel.basic_publish("scripts.direct", "standard_key", str(number))


def look():
    if len(done) == 20:
        channel.stop_consuming()
    else:
        connection.call_later(0.05, look)


connection.call_later(0.05, look)
channel.start_consuming()
for thread in threads:
    thread.join()
print(len(done), sorted(map(int, done)) == list(range(20)), channel.consumer_tags)
connection.close()
print(connection.is_closed)
