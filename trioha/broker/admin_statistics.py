"""VIEW_BROKER_STATS_DATA: messages and bytes by topic and by group.

See docs/protocol/remoting.md#administration.
"""

from __future__ import annotations

import trio

from trioha.broker.admin_answers import json_answer
from trioha.broker.traffic import BrokerTraffic
from trioha.remoting.command import BadRequestError, RemotingCommand
from trioha.remoting.header_fields import HeaderFields
from trioha.remoting.serving import Peer


class AdminStatistics:
    """Handles requests for statistics."""

    def __init__(self, traffic: BrokerTraffic) -> None:
        self._tables = {
            "TOPIC_PUT_NUMS": (traffic.puts, False),
            "TOPIC_PUT_SIZE": (traffic.puts, True),
            "GROUP_GET_NUMS": (traffic.pulls, False),
            "GROUP_GET_SIZE": (traffic.pulls, True),
            "SNDBCK_PUT_NUMS": (traffic.send_backs, False),
            "BROKER_PUT_NUMS": (traffic.broker_puts, False),
            "BROKER_GET_NUMS": (traffic.broker_pulls, False),
        }

    def view(self, request: RemotingCommand, _peer: Peer) -> RemotingCommand:
        """The last minute, hour and day of one key. Raises BadRequestError for one without any traffic."""
        fields = HeaderFields(request.ext_fields)
        name, key = fields.text("statsName"), fields.text("statsKey")
        table, in_bytes = self._tables.get(name, (None, False))
        traffic = None if table is None else table.keys.get(key)
        if traffic is None:
            raise BadRequestError(f"The stats <{name[:100]}> <{key[:300]}> not exist")
        minute, hour, day = traffic.windows(trio.current_time(), in_bytes=in_bytes)
        return json_answer(
            request, {"statsDay": day.to_json(), "statsHour": hour.to_json(), "statsMinute": minute.to_json()}
        )
