"""Access to an object storage for processes elsewhere: Spark's executors, which have another environment.

The settings of the environment, as obstore reads them (`AWS_ENDPOINT_URL`, ...), are taken where a URL is
given, and travel with what is to be read. They have secrets: nothing here prints them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

from attrs import field, frozen

from trioha.archive.errors import ArchiveError
from trioha.archive.failures import VARIABLES
from trioha.archive.objects import CLIENT_OPTIONS, ObjectFolder

REMOTE_SCHEMES: Final = ("s3", "gs", "az")
_FOLDERS_OPEN: Final = 16

SETTINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "s3": (
        "aws_access_key_id",
        "aws_secret_access_key",
        "aws_session_token",
        "aws_region",
        "aws_default_region",
        "aws_endpoint_url",
        "aws_endpoint",
        "aws_virtual_hosted_style_request",
        "aws_skip_signature",
        "aws_request_payer",
    ),
    "gs": (
        "google_service_account_key",
        "google_skip_signature",
    ),
    "az": (
        "azure_storage_account_name",
        "azure_storage_account_key",
        "azure_storage_sas_token",
        "azure_storage_client_id",
        "azure_storage_client_secret",
        "azure_storage_tenant_id",
        "azure_storage_endpoint",
        "azure_skip_signature",
    ),
}
"""By the URL's scheme: names of obstore's settings, in capital letters those of the environment."""


@frozen
class Location:
    """A URL and how to access it; may be pickled and sent to other processes."""

    url: str
    settings: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Names and values of `SETTINGS` and of options of the connection, sorted."""

    @classmethod
    def of(cls, url: str, given: Mapping[str, str] | None = None) -> Location:
        """The location of a URL with the settings of this process's environment; `given` ones count first.

        Raises ArchiveError for a setting that its storage does not have.
        """
        scheme = urlsplit(url).scheme
        if scheme not in SETTINGS:
            return cls(url)
        variables = {name: name.upper() for name in SETTINGS[scheme]}
        variables |= {name: f"{VARIABLES[scheme]}_{name.upper()}" for name in CLIENT_OPTIONS}
        settings = {
            name: value for name, variable in variables.items() if (value := os.environ.get(variable))
        }
        unknown = sorted((given or {}).keys() - variables.keys())
        if unknown:
            raise ArchiveError(
                f"there is no setting {unknown[0]!r} of this storage",
                url=url,
                hint=f"there are {', '.join(variables)}",
            )
        return cls(url.rstrip("/"), tuple(sorted({**settings, **(given or {})}.items())))

    def below(self, folder: str) -> Location:
        """A folder below the URL."""
        return Location(f"{self.url.rstrip('/')}/{folder}", self.settings)

    def open(self) -> ObjectFolder:
        """Its objects; opened once in a process. Raises ArchiveError."""
        return _opened(self)


@lru_cache(_FOLDERS_OPEN)
def _opened(location: Location) -> ObjectFolder:
    return ObjectFolder.open(location.url, config=dict(location.settings))


def is_remote(named: object) -> bool:
    """Whether a text names objects of a storage that is no folder: `s3://bucket/...`."""
    return urlsplit(str(named)).scheme in REMOTE_SCHEMES if ":" in str(named) else False
