"""Contains DeliveryMode, under the same module name as in pika."""

from manytail.broker.spec import DeliveryMode

__all__ = ["DeliveryMode"]
