"""Heartbeats: which groups of producers and consumers a client is a member of.

See docs/protocol/remoting.md#clients-and-groups.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
from collections.abc import Iterable, Mapping
from typing import Final

from trioha.remoting.codes import RequestCode
from trioha.remoting.command import RemotingCommand, request
from trioha.remoting.subscriptions import Subscription

HEARTBEAT_INTERVAL_S: Final = 30.0


def new_client_id() -> str:
    """An id that no other client has: host, process, and a random part."""
    return f"{socket.gethostname()}@{os.getpid()}#{secrets.token_hex(6)}"


def heartbeat(
    client_id: str, *, producers: Iterable[str], consumers: Mapping[str, Iterable[Subscription]]
) -> RemotingCommand:
    """The request for a client with these groups; `consumers` has the subscriptions of each group."""
    body = {
        "clientID": client_id,
        "consumerDataSet": [
            {
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "consumeType": "CONSUME_PASSIVELY",
                "groupName": group,
                "messageModel": "CLUSTERING",
                "subscriptionDataSet": [subscription.to_json() for subscription in subscriptions],
                "unitMode": False,
            }
            for group, subscriptions in consumers.items()
        ],
        "producerDataSet": [{"groupName": group} for group in producers],
    }
    return request(RequestCode.HEART_BEAT, body=json.dumps(body, separators=(",", ":")).encode())


def unregistration(
    client_id: str, *, producer_group: str | None = None, consumer_group: str | None = None
) -> RemotingCommand:
    """The request that ends a membership."""
    fields = {"clientID": client_id}
    if producer_group is not None:
        fields["producerGroup"] = producer_group
    if consumer_group is not None:
        fields["consumerGroup"] = consumer_group
    return request(RequestCode.UNREGISTER_CLIENT, ext_fields=fields)
