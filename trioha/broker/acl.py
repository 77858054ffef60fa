"""Access control by the rules of a plain_acl.yml: checks each request before its handler gets it.

See docs/protocol/remoting.md#signed-requests.

The checks and their remarks are those of RocketMQ 4.9, in its order: an address of the global white list may
do everything; else the request must name an account; from an address of the account's white list it may do
everything; else its signature must be the account's, and the account must have the permissions.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from trioha.auth.model import Resource
from trioha.broker.acl_rules import AclRules
from trioha.broker.request_guard import RequestGuard
from trioha.broker.touched import OPEN_CODES, Around, needs_admin, touches_of
from trioha.remoting.codes import ResponseCode
from trioha.remoting.command import BadRequestError, RemotingCommand
from trioha.remoting.serving import Peer
from trioha.remoting.signature import ACCESS_KEY, is_signed_with

HOSTS_MAX: Final = 4096
"""Addresses for which the decision of the global white list is kept."""


class AclError(BadRequestError):
    """A request that access control refuses; the remark starts as that of a RocketMQ broker does."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"org.apache.rocketmq.acl.common.AclException: {reason}", code=ResponseCode.SYSTEM_ERROR
        )


class AccessControl(RequestGuard):
    """Checks requests by the rules as they are at each request."""

    def __init__(
        self, rules: Callable[[], AclRules], around: Around, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`rules` gives those that hold now."""
        super().__init__(clock)
        self._around = around
        self._rules = rules
        self._white_rules: AclRules | None = None
        """Those of `_white_hosts`."""
        self._white_hosts: dict[str, bool] = {}

    def check(self, request: RemotingCommand, peer: Peer) -> None:
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
        if needs_admin(request.code):
            if not account.is_admin:
                raise AclError(
                    f"Need admin permission for request code={request.code}, "
                    f"but accessKey={access_key} is not"
                )
            return
        for touch in touches_of(request, self._around):
            if touch.permission is not None and not account.may(touch.permission, touch.resource):
                raise AclError(f"No default permission for {_shown(touch.resource)}")

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


def _shown(resource: Resource) -> str:
    """As in the remarks of 4.9: `topic:Orders`."""
    return f"{resource.kind.wire_name.lower()}:{resource.name}"[:300]
