"""What all tests of archives share."""

from __future__ import annotations

import pytest

from tests.s3 import bucket_in_environment, obstore_settled, start_obstore


@pytest.fixture(autouse=True, scope="session")
def obstore_runs():
    """Descriptors of obstore's runtime are open before any test counts."""
    start_obstore()


@pytest.fixture(params=["file", "s3"])
def archive_url(request, tmp_path, s3_server_of_this_run, monkeypatch):
    """Where an archive can be: in a folder, which is to be made, and on an S3 server."""
    with obstore_settled():
        if request.param == "file":
            yield f"file://{tmp_path}/archive"
        else:
            with bucket_in_environment(s3_server_of_this_run.bucket(), monkeypatch) as bucket:
                yield bucket.url
