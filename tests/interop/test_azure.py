"""Archives on Azure's Blob storage, by Microsoft's own emulator: in short what S3 is tested for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import azurite
from tests.archive.building import log_data
from tests.archive.support import Log, archived, archiver_of
from tests.archiver import ArchiverProcess, archived_offset, wait_archived
from tests.node_process import run_trioha
from tests.s3 import obstore_settled, start_obstore
from trioha.archive.errors import FencedError
from trioha.archive.layout import LOG
from trioha.archive.objects import ObjectFolder

FILE_BYTES = 1 << 20
pytestmark = [
    pytest.mark.interop,
    pytest.mark.process,
    pytest.mark.nightly,
    pytest.mark.timeout(900),
    pytest.mark.skipif(azurite.missing_tools() is not None, reason=str(azurite.missing_tools())),
]


@pytest.fixture(autouse=True, scope="module")
def obstore_runs() -> None:
    """Descriptors of obstore's runtime are open before any test counts."""
    start_obstore()


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What leads to Azurite; on a machine that cannot have it these tests are skipped."""
    try:
        program = azurite.installed()
    except azurite.NotInstalledError as error:
        pytest.skip(f"no Azurite: {error}")
    with azurite.azurite(program, tmp_path_factory.mktemp("azurite")) as found:
        yield found


@pytest.fixture
def url(
    environment: dict[str, str], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """Of an archive that is not there yet."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with obstore_settled():
        yield f"az://{azurite.CONTAINER}/archives/{request.node.name}"


def test_an_archiver_that_is_killed_goes_on_and_its_archive_restores_to_the_same_log(url, tmp_path):
    log = Log(tmp_path / "store", file_bytes=FILE_BYTES)
    log.append(300, body=bytes(500))
    archiver = ArchiverProcess(log.store, url, log_file=tmp_path / "archiver.log")
    wait_archived(archiver, url, log.end_offset)
    archiver.kill()
    log.append(300, body=bytes(500))
    archiver = ArchiverProcess(log.store, url, log_file=tmp_path / "archiver.log")
    try:
        wait_archived(archiver, url, log.end_offset)
    finally:
        archiver.stop()
    for command in (("verify", url), ("verify", str(log.store), "--against", url)):
        said = run_trioha(*command)
        assert said.exit_code == 0, said.stderr
    said = run_trioha("restore", url, "--into", tmp_path / "restored")
    assert said.exit_code == 0, said.stderr
    first, _, restored = log_data(tmp_path / "restored")
    assert first == 0
    assert restored.rstrip(b"\0") == log.data().rstrip(b"\0")


def test_a_damaged_object_is_found(url, tmp_path):
    log = Log(tmp_path / "store", file_bytes=FILE_BYTES)
    log.append(20)
    assert run_trioha("archive", log.store, "--to", url).exit_code == 0
    folder = ObjectFolder.open(url)
    damaged = next(one.key for one in folder.list(LOG))
    data = bytearray(folder.get(damaged))
    data[len(data) // 2] ^= 1
    folder.put(damaged, bytes(data))
    said = run_trioha("verify", url)
    assert said.exit_code != 0
    assert damaged in said.stderr + said.stdout


def test_of_two_that_create_an_object_one_does(url):
    folder = ObjectFolder.open(url)
    assert folder.create("heads/1", b"first")
    assert not folder.create("heads/1", b"second")
    assert folder.get("heads/1") == b"first"


def test_a_second_archiver_fences_the_first(url, tmp_path):
    log = Log(tmp_path / "store", file_bytes=FILE_BYTES)
    log.append(20)
    folder = ObjectFolder.open(url)
    first = archiver_of(folder, log)
    first.step()
    second = archiver_of(folder, log, take_over=True)
    log.append(20)
    second.step()
    log.append(20)
    with pytest.raises(FencedError):
        first.step()
    assert archived(folder)[1] == log.bytes_of(0, archived_offset(url))


def test_a_container_that_is_not_there_is_one_line(url, tmp_path):
    log = Log(tmp_path / "store", file_bytes=FILE_BYTES)
    log.append()
    said = run_trioha("archive", log.store, "--to", "az://nowhere/a")
    assert said.exit_code != 0
    assert said.stderr.strip().splitlines()[-1] == "trioha: az://nowhere/a/heads: there is no such bucket"


def test_it_goes_on_beyond_the_requests_that_fill_a_pipe_with_its_lines(url):
    folder = ObjectFolder.open(url)
    folder.put("one", b"body")
    for _ in range(1500):
        assert folder.get("one") == b"body"
