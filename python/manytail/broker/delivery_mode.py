"""DeliveryMode, in the module where pika has it."""

from manytail.broker.spec import DeliveryMode

__all__ = ["DeliveryMode"]
