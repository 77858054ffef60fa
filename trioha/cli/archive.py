"""`trioha archive`: archive stores to an object storage, once or continuously."""

from __future__ import annotations

from pathlib import Path

from trioha.archive.archiver import Archiver
from trioha.archive.objects import ObjectFolder
from trioha.cli.archive_file import ArchiveJob, read_jobs, settings_of
from trioha.cli.archive_run import ArchiveRun, run_all
from trioha.cli.archive_screen import ArchiveScreen, screens
from trioha.errors import ConfigError
from trioha.metrics.archivers import ArchiverFigures
from trioha.remoting.address import parse_address


def archive(
    store: Path | None = None,
    *,
    to: str | None = None,
    config: Path | None = None,
    follow: bool = False,
    interval: str | None = None,
    keep: str | None = None,
    take_over: bool = False,
    trust_clock: bool = False,
    commit_log: Path | None = None,
    recordings: Path | None = None,
    cluster: str | None = None,
    broker: str | None = None,
    metrics: str | None = None,
    json: bool = False,
) -> int:
    """Archive the log and the metadata of stores to an object storage.

    Works beside a running broker or node, RocketMQ's too, and only reads the store. It goes on where the
    archive ends; interrupted at any moment it leaves no hole. Ctrl-C and SIGTERM end it after the present
    object, a second one at once. Exit code 1 if a damaged record ends what can be archived, 2 if another
    writer has the archive. Of several stores one that ends so does not end the others; the exit code is the
    greatest.

    Parameters
    ----------
    store
        A storePathRootDir.
    to
        URL of the archive: s3://bucket/folder, gs://, az:// or file:///folder. Each broker has its own.
    config
        TOML file of several stores, in place of STORE and its options (docs/archives.md#several-stores).
    follow
        Go on as the log grows.
    interval
        With --follow: time between two steps, as 10s or 1m; 10s by default.
    keep
        Delete what a restore to a time within the last 30d (12h, 4w) does not need. By default all is kept.
    take_over
        Replace another writer without waiting whether it is alive.
    trust_clock
        With --keep, once: the clock is right, though the archive's last head is more than a week from it.
    commit_log
        Folder of the log, if storePathCommitLog is not the folder commitlog of the store.
    recordings
        Also archive the recorded sessions in this folder (what trioha.recordDir names).
    cluster
        Cluster name of a new archive; DefaultCluster by default.
    broker
        Broker name of a new archive; this host's name by default, as RocketMQ's is.
    metrics
        HOST:PORT to serve metrics for Prometheus at, as 127.0.0.1:9109 (docs/metrics.md#archivers).
    json
        Print one JSON object for each step.
    """
    if config is not None:
        own = {"STORE": store, "--to": to, "--interval": interval, "--keep": keep, "--commit-log": commit_log,
               "--recordings": recordings, "--cluster": cluster, "--broker": broker}  # fmt: skip
        if given := [name for name, value in own.items() if value is not None]:
            raise ConfigError(
                f"{', '.join(given)} cannot be beside it", key="--config", hint="say it in the file"
            )
        jobs = read_jobs(config)
    elif store is None or to is None:
        raise ConfigError(
            "is missing", key="STORE" if store is None else "--to", hint="or give --config FILE"
        )
    else:
        jobs = [
            ArchiveJob(
                store=store,
                url=to,
                settings=settings_of(interval, keep),
                commit_log=commit_log,
                recordings=recordings,
                cluster=cluster,
                broker=broker,
            )
        ]
    address = None if metrics is None else parse_address(metrics)
    for job in jobs:
        job.check()

    def run_of(job: ArchiveJob, screen: ArchiveScreen) -> ArchiveRun:
        archiver = Archiver(
            ObjectFolder.open(job.url, create=True),
            job.store,
            cluster_name=job.cluster,
            broker_name=job.broker,
            commit_log=job.commit_log,
            settings=job.settings,
            take_over=take_over,
            trust_clock=trust_clock,
            recordings=job.recordings,
            notify=screen.note,
        )
        return ArchiveRun(archiver, screen, follow, job.settings.interval_s, ArchiverFigures(url=job.url))

    with screens([(str(job.store), job.url) for job in jobs], json=json) as shown:
        runs = [run_of(job, screen) for job, screen in zip(jobs, shown, strict=True)]
        return run_all(runs, metrics=address)
