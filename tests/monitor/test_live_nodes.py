"""The live source on nodes that really replicate, in this process."""

import pytest
import trio
import trustme
from attrs import evolve

from tests.monitor.real_nodes import running, send
from tests.monitor.watching import Watch
from tests.node.role_nodes import ASYNC_MASTER, role_node, slave_of
from tests.waiting import until
from trioha.client.cluster import open_cluster
from trioha.client.consumer import Consumer, ConsumerSettings, Start, StartAt
from trioha.client.routes import SingleBroker
from trioha.net.tls import client_context
from trioha.remoting.client import ClientSecurity
from trioha.remoting.signature import Credentials
from trioha.replica_verdict import Verdict
from trioha_monitor.consumption_feed import Demand, consumption_session
from trioha_monitor.live import LIVE_TIMES, LiveSettings, live_views
from trioha_monitor.replay import open_replay
from trioha_monitor.view import EventKind, Health

SETTINGS = LiveSettings(times=evolve(LIVE_TIMES, interval_s=0.05, refresh_s=0.05, back_off_s_max=0.2))


def finished(*folders):
    """A replay of recordings that has read them all."""
    source = open_replay(list(folders))
    while source.work(for_s=1.0):
        pass
    return source


def recorded_figures(row):
    """All figures that a node records; the dispatched offset is not one."""
    return (
        (row.address, row.label, row.state, row.is_connected, row.in_sync, row.verdict),
        (row.master_offset, row.sent_offset, row.ack_offset, row.flushed_offset),
        (row.diff_bytes, row.lag_s),
    )


def is_at_rest(view):
    """Whether the only replica has all that was sent, on disk and dispatched."""
    (row, *others) = view.replicas or (None,)
    return (
        row is not None
        and not others
        and row.node is not None
        and row.ack_latency_ms is not None
        and row.verdict is Verdict.OK
        and (row.ack_offset or 0) > 20_000
        and row.ack_offset == row.flushed_offset == row.dispatched_offset == row.master_offset
    )


async def test_a_pair_is_one_replica_through_the_loss_of_the_slave_and_its_return_live_and_replayed(tmp_path):
    watch, recorded = Watch(), tmp_path / "recorded"
    settings = {"listenPort": 0, "haListenPort": 0, "trioha.recordDir": str(recorded)}
    async with running(tmp_path / "m", brokerRole="SYNC_MASTER", brokerId=0, **settings) as master:
        settings |= {"brokerRole": "SLAVE", "brokerId": 1, "haMasterAddress": str(master.ha)}
        async with trio.open_nursery() as nursery:
            async with running(tmp_path / "s", **settings) as slave:
                feed = live_views([str(master.listen), str(slave.listen)], settings=SETTINGS)
                nursery.start_soon(feed, watch.show)
                await watch.until(lambda view: any(row.node and row.is_connected for row in view.replicas))
                assert await send(str(master.listen), 20) == ["PUT_OK"] * 20
                view = await watch.until(is_at_rest)
                (row,) = view.replicas
                assert (row.node, row.label, row.master_label) == (
                    *(str(slave.listen), "broker-a #1", "broker-a #0"),
                )
                assert (row.state, row.reconnects, row.frame_bytes.largest > 1000) == ("TRANSFER", 0, True)
                master_view, slave_view = view.nodes
                assert master_view.limits.are_reported
                assert (master_view.log.file_bytes, master_view.log.files) == (1 << 20, 1)
                assert master_view.log.disk_ratio is not None
                assert {put.status: put.count for put in master_view.log.puts} == {"PUT_OK": 20}
                assert slave_view.slave.master_address == str(master.ha)
                assert slave_view.slave.is_observer is False

                def is_replayed():
                    source = finished(recorded)
                    (again,) = source.view_at(source.position.end_ns).replicas
                    return recorded_figures(again) == recorded_figures(row)

                # Recorders write a little after the event.
                await until(is_replayed)
            gone = await watch.until(lambda view: view.replicas[0].verdict is Verdict.SILENT)
            (lost,) = (event for event in gone.events if event.kind is EventKind.LOST)
            assert lost.text.startswith("connection ended (EOF: the slave closed it); ack 2")
            assert await send(str(master.listen), 3) == ["SLAVE_NOT_AVAILABLE"] * 3
            behind = await watch.until(lambda view: (view.replicas[0].diff_bytes or 0) > 3000)
            assert (behind.replicas[0].is_connected, behind.replicas[0].key) == (False, row.key)
            async with running(tmp_path / "s", **{**settings, "listenPort": slave.listen.port}):
                again = await watch.until(
                    lambda view: (
                        view.replicas[0].verdict is Verdict.OK
                        and (view.replicas[0].ack_offset or 0) > 23_000
                        and view.replicas[0].diff_bytes == 0
                    )
                )
                (back,) = again.replicas
                assert (back.key, back.label, back.reconnects) == (row.key, row.label, 1)
                worst = back.lag_history.worst(end_ms=again.time_ms, span_ms=60_000)
                # It acknowledged its tail again before that, which is not a lag.
                assert worst.value == behind.replicas[0].diff_bytes
            nursery.cancel_scope.cancel()
    source = finished(recorded)
    view = source.view_at(source.position.end_ns)
    assert source.damage == ()
    assert [(node.label, node.role, node.health) for node in view.nodes] == [
        ("broker-a #0", "SYNC_MASTER", Health.UP),
        ("broker-a #1", "SLAVE", Health.DOWN),
    ]
    (last,) = view.replicas
    assert (last.verdict, last.is_connected, last.ack_offset) == (Verdict.SILENT, False, back.ack_offset)
    puts = {put.status: put.count for put in view.nodes[0].log.puts}
    assert puts == {"PUT_OK": 20, "SLAVE_NOT_AVAILABLE": 3}


@pytest.mark.full
async def test_an_observer_is_shown_as_one(tmp_path):
    watch = Watch()
    async with running(tmp_path / "m", brokerRole="ASYNC_MASTER", brokerId=0, listenPort=0) as master:
        settings = {
            "brokerRole": "SLAVE", "brokerId": 1, "listenPort": 0, "haMasterAddress": str(master.ha),
            "trioha.haRole": "observer",
        }  # fmt: skip
        async with running(tmp_path / "o", **settings) as observer, trio.open_nursery() as nursery:
            feed = live_views([str(master.listen), str(observer.listen)], settings=SETTINGS)
            nursery.start_soon(feed, watch.show)
            await send(str(master.listen), 5)
            view = await watch.until(
                lambda view: [row.verdict for row in view.replicas] == [Verdict.OBSERVER]
            )
            assert view.replicas[0].node == str(observer.listen)
            nursery.cancel_scope.cancel()


@pytest.mark.full
async def test_the_monitor_signs_and_encrypts(tmp_path):
    authority = trustme.CA()
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    (tmp_path / "acl.yml").write_text("accounts: [{accessKey: account-1, secretKey: secret-1}]\n")
    settings = {
        "brokerRole": "ASYNC_MASTER", "brokerId": 0, "listenPort": 0, "aclEnable": "true",
        "trioha.aclFile": tmp_path / "acl.yml", "tls.server.mode": "enforcing",
        "tls.server.certPath": tmp_path / "server.pem", "tls.server.keyPath": tmp_path / "server.pem",
    }  # fmt: skip
    tls = client_context(tmp_path / "ca.pem", key="--tls-ca")

    def settings_of(secret_key):
        security = ClientSecurity(Credentials("account-1", secret_key), tls)
        return LiveSettings.with_security(security, times=SETTINGS.times, on_observed=SETTINGS.on_observed)

    async with running(tmp_path / "m", **settings) as master, trio.open_nursery() as nursery:
        watch, refused = Watch(), Watch()
        nursery.start_soon(live_views([str(master.listen)], settings=settings_of("secret-1")), watch.show)
        nursery.start_soon(live_views([str(master.listen)], settings=settings_of("secret-2")), refused.show)
        await watch.until(lambda view: view.nodes[0].health is Health.UP)
        view = await refused.until(lambda view: view.nodes[0].health is Health.DOWN)
        assert "Check signature failed" in str(view.nodes[0])
        nursery.cancel_scope.cancel()


@pytest.mark.full
async def test_a_node_that_changes_its_role_is_shown_in_the_new_one_without_a_restart(tmp_path):
    watch = Watch()
    async with role_node(tmp_path / "a", ASYNC_MASTER) as node, trio.open_nursery() as nursery:
        nursery.start_soon(live_views([node.address], settings=SETTINGS), watch.show)
        for role in (ASYNC_MASTER, slave_of(), ASYNC_MASTER):
            node.roles.set(role)
            view = await watch.until(
                lambda view, shown=role: (
                    [(one.role, one.broker_id) for one in view.nodes]
                    == [(shown.broker_role.value, shown.broker_id)]
                )
            )
            assert view.nodes[0].address == node.address
        nursery.cancel_scope.cancel()


async def test_a_group_its_lag_its_member_and_its_broker_are_shown(tmp_path):
    async with running(tmp_path / "node", brokerRole="ASYNC_MASTER", listenPort=0, haListenPort=0) as ready:
        address = str(ready.listen)
        assert await send(address, 5) == ["PUT_OK"] * 5
        settings = ConsumerSettings("T", group="g", start_at=StartAt(Start.FIRST))
        demand = Demand(is_wanted=True)
        async with (
            open_cluster(broker=SingleBroker(address)) as cluster,
            Consumer(cluster, settings) as consumer,
        ):
            received = 0
            while received < 5:
                batch = await consumer.receive()
                # The first three of the queue, however the pulls cut it.
                consumer.acknowledge(batch[: max(0, 3 - received)])
                received += len(batch)
            await consumer.commit()
            async with consumption_session(address) as ask:
                sample = await ask()
            (progress,) = (one for one in sample.groups if (one.group, one.topic) == ("g", "T"))
            assert (progress.queues, progress.lag) == (4, 2)
            members = sample.members["g"]
            assert (members.count, members.model) == (1, "CLUSTERING")
            assert members.clients[0].startswith(cluster.client_id[:20])
            rows = []
            shown = trio.Event()

            def show(view):
                found = () if view.consumption is None else view.consumption.rows
                # Once they have their broker's name.
                wanted = ("g", "T", "broker-a")
                rows[:] = [row for row in found if (row.group, row.topic, row.broker) == wanted]
                if rows:
                    shown.set()

            feed = live_views([address], settings=LiveSettings(LIVE_TIMES, demand=demand))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(feed, show)
                with trio.fail_after(60):
                    await shown.wait()
                nursery.cancel_scope.cancel()
    (row,) = rows
    assert (row.lag, row.members, row.broker) == (2, 1, "broker-a")
