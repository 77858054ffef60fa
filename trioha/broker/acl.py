"""Access control of a broker: checks each request before its handler gets it.

See docs/protocol/remoting.md#signed-requests.

The checks and their remarks are those of RocketMQ 4.9, in its order: an address of the global white list may
do everything; else the request must name an account; from an address of the account's white list it may do
everything; else its signature must be the account's, and the account must have the permissions.

Refusals are counted, and logged at most once a minute, so that a client that repeats them does not fill the
log.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import structlog

from trioha.broker.acl_resources import ADMIN_CODES, OPEN_CODES, TopicAt, needs_of
from trioha.broker.acl_rules import AclRules
from trioha.log_limit import LogLimit
from trioha.remoting.codes import ResponseCode
from trioha.remoting.command import BadRequestError, RemotingCommand
from trioha.remoting.serving import Answer, Handler, Peer
from trioha.remoting.signature import ACCESS_KEY, is_signed_with

log = structlog.get_logger(__name__)

REPORT_INTERVAL_S: Final = 60.0
"""Least time between two log lines about refusals."""
HOSTS_MAX: Final = 4096
"""Addresses for which the decision of the global white list is kept."""


class AclError(BadRequestError):
    """A request that access control refuses; the remark starts as that of a RocketMQ broker does."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"org.apache.rocketmq.acl.common.AclException: {reason}", code=ResponseCode.SYSTEM_ERROR
        )


class AccessControl:
    """Checks and counts the requests to a broker."""

    def __init__(
        self,
        rules: Callable[[], AclRules],
        *,
        topic_at: TopicAt,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`rules` gives those that hold now. `topic_at` tells of messages that are named by their offset;
        `clock` gives seconds."""
        self._topic_at = topic_at
        self._line = LogLimit(REPORT_INTERVAL_S, clock_s=clock)
        self._rules = rules
        self._white_rules: AclRules | None = None
        """Those of `_white_hosts`."""
        self._white_hosts: dict[str, bool] = {}
        self.refused = 0
        """Requests refused so far."""

    def guard(self, handler: Handler) -> Handler:
        """`handler` behind this check. Raises BadRequestError for a request that is refused."""

        def guarded(request: RemotingCommand, peer: Peer) -> Answer:
            try:
                self._check(request, peer)
            except BadRequestError as refusal:
                self._count(refusal, request, peer)
                raise
            return handler(request, peer)

        return guarded

    def _check(self, request: RemotingCommand, peer: Peer) -> None:
        """Return if the request is allowed. Raises BadRequestError."""
        rules, host = self._rules(), peer.address.host
        if request.code in OPEN_CODES or self._is_white(rules, host):
            return
        access_key = request.ext_fields.get(ACCESS_KEY)
        if access_key is None:
            raise AclError("No accessKey is configured")
        account = rules.accounts.get(access_key)
        if account is None:
            raise AclError(f"No acl config for {access_key[:100]}")
        if account.white_addresses.matches(host):
            return
        if not is_signed_with(request, account.secret_key):
            raise AclError(f"Check signature failed for accessKey={access_key}")
        if request.code in ADMIN_CODES and not account.is_admin:
            raise AclError(
                f"Need admin permission for request code={request.code}, but accessKey={access_key} is not"
            )
        for resource, permission in needs_of(request, self._topic_at):
            if not account.may(permission, resource):
                raise AclError(f"No default permission for {str(resource)[:300]}")

    def _count(self, refusal: BadRequestError, request: RemotingCommand, peer: Peer) -> None:
        self.refused += 1
        if refusals := self._line.count():
            log.warning(
                "request refused by access control",
                peer=str(peer),
                code=request.code,
                reason=refusal.reason[:200],
                not_logged=refusals - 1,
            )

    def _is_white(self, rules: AclRules, host: str) -> bool:
        """Whether the global white list of `rules` has the address."""
        if rules is not self._white_rules:
            self._white_rules, self._white_hosts = rules, {}
        known = self._white_hosts.get(host)
        if known is None:
            if len(self._white_hosts) >= HOSTS_MAX:
                self._white_hosts.clear()
            known = any(pattern.matches(host) for pattern in rules.white_addresses)
            self._white_hosts[host] = known
        return known
