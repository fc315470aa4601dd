"""The credential classes, in the module where pika has them. The broker does not check credentials."""

from manytail.broker.parameters import ExternalCredentials, PlainCredentials

__all__ = ["VALID_TYPES", "ExternalCredentials", "PlainCredentials"]

VALID_TYPES = [PlainCredentials, ExternalCredentials]
