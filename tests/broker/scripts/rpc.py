"""Remote calls: a server in a thread with its own connection; the client waits for events until its answer is there."""

import os
import threading
import uuid

import pika

CREDENTIALS = pika.PlainCredentials("guest", "guest")
url = pika.URLParameters(os.environ["AMQP_URL"])
PARAMETERS = pika.ConnectionParameters(
    host=url.host, port=url.port, virtual_host="/", credentials=CREDENTIALS, heartbeat=600
)
ready = threading.Event()


def serve():
    connection = pika.BlockingConnection(PARAMETERS)
    channel = connection.channel()
    channel.queue_declare(queue="scripts.rpc")

    def on_request(ch, method, props, body):
        answer = sum(range(int(body)))
        ch.basic_publish(
            exchange="",
            routing_key=props.reply_to,
            properties=pika.BasicProperties(correlation_id=props.correlation_id),
            body=str(answer),
        )
        ch.basic_ack(delivery_tag=method.delivery_tag)
        if answer == 0:
            ch.stop_consuming()

    channel.basic_qos(prefetch_count=1)
    channel.basic_consume(queue="scripts.rpc", on_message_callback=on_request)
    ready.set()
    channel.start_consuming()
    channel.queue_delete("scripts.rpc")
    connection.close()


class Client:
    def __init__(self):
        self.connection = pika.BlockingConnection(PARAMETERS)
        self.channel = self.connection.channel()
        self.callback_queue = self.channel.queue_declare(queue="", exclusive=True).method.queue
        self.channel.basic_consume(queue=self.callback_queue, on_message_callback=self.on_response, auto_ack=True)
        self.response = self.corr_id = None

    def on_response(self, ch, method, props, body):
        if self.corr_id == props.correlation_id:
            self.response = body

    def call(self, n):
        self.response = None
        self.corr_id = str(uuid.uuid4())
        self.channel.basic_publish(
            exchange="",
            routing_key="scripts.rpc",
            properties=pika.BasicProperties(reply_to=self.callback_queue, correlation_id=self.corr_id),
            body=str(n),
        )
        while self.response is None:
            self.connection.process_data_events(time_limit=None)
        return int(self.response)


server = threading.Thread(target=serve)
server.start()
ready.wait()
client = Client()
print([client.call(n) for n in range(200, 0, -1)][::20])
server.join()
client.connection.close()
