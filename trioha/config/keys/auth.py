"""Keys of users and access control lists of RocketMQ 5 (docs/auth.md)."""

# ruff: noqa: RUF009 - `setting` is a field specifier of attrs

from __future__ import annotations

from typing import Final

from attrs import frozen

from trioha.config import values
from trioha.config.setting import setting
from trioha.config.values import Account

_AUTHENTICATION: Final = "org.apache.rocketmq.auth.authentication"
_AUTHORIZATION: Final = "org.apache.rocketmq.auth.authorization"
LOCAL_USERS: Final = f"{_AUTHENTICATION}.provider.LocalAuthenticationMetadataProvider"
LOCAL_ACLS: Final = f"{_AUTHORIZATION}.provider.LocalAuthorizationMetadataProvider"
_DEFAULT_AUTHENTICATION: Final = f"{_AUTHENTICATION}.provider.DefaultAuthenticationProvider"
_DEFAULT_AUTHORIZATION: Final = f"{_AUTHORIZATION}.provider.DefaultAuthorizationProvider"
_AUTHENTICATION_STRATEGIES: Final = (
    f"{_AUTHENTICATION}.strategy.StatelessAuthenticationStrategy",
    f"{_AUTHENTICATION}.strategy.StatefulAuthenticationStrategy",
)
_AUTHORIZATION_STRATEGIES: Final = (
    f"{_AUTHORIZATION}.strategy.StatelessAuthorizationStrategy",
    f"{_AUTHORIZATION}.strategy.StatefulAuthorizationStrategy",
)


@frozen(kw_only=True, slots=False, repr=False, eq=False)
class AuthKeys:
    """Users and access control lists."""

    authentication_enabled: bool = setting("authenticationEnabled", values.boolean, default=False)
    """Whether each request must be signed by a user. RocketMQ default: false."""

    authorization_enabled: bool = setting("authorizationEnabled", values.boolean, default=False)
    """Whether the user's access control list must allow each request. RocketMQ default: false."""

    authentication_provider: str = setting(
        "authenticationProvider",
        values.java_class(_DEFAULT_AUTHENTICATION),
        default=_DEFAULT_AUTHENTICATION,
    )
    """Class that authenticates: RocketMQ's own is the only one. RocketMQ default: that one."""

    authorization_provider: str = setting(
        "authorizationProvider", values.java_class(_DEFAULT_AUTHORIZATION), default=_DEFAULT_AUTHORIZATION
    )
    """Class that authorizes: RocketMQ's own is the only one. RocketMQ default: that one."""

    authentication_metadata_provider: str | None = setting(
        "authenticationMetadataProvider", values.optional_java_class(LOCAL_USERS), default=None
    )
    """Class that keeps the users, LocalAuthenticationMetadataProvider; without it there are none. RocketMQ
    default: none."""

    authorization_metadata_provider: str | None = setting(
        "authorizationMetadataProvider", values.optional_java_class(LOCAL_ACLS), default=None
    )
    """Class that keeps the access control lists, LocalAuthorizationMetadataProvider; without it there are
    none. RocketMQ default: none."""

    authentication_strategy: str = setting(
        "authenticationStrategy",
        values.java_class(*_AUTHENTICATION_STRATEGIES),
        default=_AUTHENTICATION_STRATEGIES[0],
    )
    """Stateless or Stateful; trioha checks every request with both. RocketMQ default: Stateless."""

    authorization_strategy: str = setting(
        "authorizationStrategy",
        values.java_class(*_AUTHORIZATION_STRATEGIES),
        default=_AUTHORIZATION_STRATEGIES[0],
    )
    """Stateless or Stateful; trioha checks every request with both. RocketMQ default: Stateless."""

    authentication_whitelist: tuple[int, ...] = setting(
        "authenticationWhitelist", values.request_codes, default=()
    )
    """Request codes that need no signature, split by `,`. RocketMQ default: none."""

    authorization_whitelist: tuple[int, ...] = setting(
        "authorizationWhitelist", values.request_codes, default=()
    )
    """Request codes that no list needs to allow, split by `,`. RocketMQ default: none."""

    init_authentication_user: Account | None = setting(
        "initAuthenticationUser",
        values.optional_account("username", "password"),
        default=None,
        is_secret=True,
    )
    """JSON `{"username":...,"password":...}`: a Super user that is made at the start if it is not there.
    RocketMQ default: none."""

    inner_client_credentials: Account | None = setting(
        "innerClientAuthenticationCredentials",
        values.optional_account("accessKey", "secretKey"),
        default=None,
        is_secret=True,
    )
    """JSON `{"accessKey":...,"secretKey":...}`: what the node signs its own requests with, and a Super user
    that is made at the start if it is not there. RocketMQ default: none."""

    migrate_auth_from_v1: bool = setting("migrateAuthFromV1Enabled", values.boolean, default=False)
    """Whether accounts of conf/plain_acl.yml and conf/acl/*.yml in rocketmqHome become users at the start.
    RocketMQ default: false."""
