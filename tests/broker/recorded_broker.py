"""A broker with all parts that serve clients, for requests that real clients sent to real brokers."""

import inspect
import json

from tests.broker.consuming import PEER
from tests.ha.support import Events
from tests.remoting.recorded import VECTORS, commands
from tests.store.support import message, open_store
from trioha.broker.clients import ConsumerData, Heartbeat
from trioha.broker.registration import BrokerEntry, BrokerRegistration
from trioha.config.broker import BrokerConfig
from trioha.config.update import ConfigFile
from trioha.metadata.metadata_store import MetadataStore
from trioha.metadata.topics import TopicConfig
from trioha.node.broker_service import BrokerService
from trioha.node.budget import descriptor_budget
from trioha.node.metadata import metadata_settings
from trioha.node.pending_messages import PendingCounter
from trioha.node.replication import Replication
from trioha.node.security import Security
from trioha.node.store_tasks import StoreTasks
from trioha.remoting.address import Address
from trioha.remoting.client import NO_SECURITY
from trioha.remoting.codes import LanguageCode, RequestCode, ResponseCode
from trioha.remoting.command import BadRequestError, response_to
from trioha.remoting.fastjson import parse_json
from trioha.remoting.subscriptions import Subscription
from trioha.store.dispatch_to_end import dispatch_to_end
from trioha.store.message_properties import encode_properties

TOPIC = "TopicSpec"


class Master:
    """All parts of a broker that serve clients, without sockets."""

    def __init__(self, tmp_path, **settings):
        path = tmp_path / "broker.conf"
        path.write_text("")
        self.config = BrokerConfig(
            store_path_root_dir=tmp_path,
            broker_cluster_name="SpecCluster",
            broker_name="broker-a",
            broker_ip1="127.0.0.1",
            **settings,
        )
        self.store = open_store(tmp_path)
        self.metadata = MetadataStore.open(metadata_settings(self.config))
        budget = descriptor_budget(self.config)
        ha = Replication.build(self.config, self.store, sink=Events(), budget=budget)
        tasks = StoreTasks.build(self.config, self.store, sink=Events(), retention_floor=lambda: 0)
        self.service = BrokerService.build(
            self.config,
            self.store,
            metadata=self.metadata,
            ha=ha,
            security=Security(tls=None, acl=None, client=NO_SECURITY),
            listen=Address("127.0.0.1", 10911),
            ha_address=Address("127.0.0.1", 10912),
            sink=Events(),
            budget=budget,
            warnings=(),
            retention=tasks.retention,
            readers=tasks.readers,
            config_file=ConfigFile(path),
            handlers={},
            pending=PendingCounter(self.config, self.store, self.metadata),
            registration=BrokerRegistration(
                [],
                BrokerEntry("SpecCluster", "broker-a", 0, "127.0.0.1:10911", "127.0.0.1:10912"),
                self.metadata.topics,
                period_s=30.0,
                timeout_s=1.0,
            ),
        )
        self.metadata.topics.put(TopicConfig(TOPIC, 4, 4))

    async def answer(self, command):
        try:
            answer = self.service.server.handler(command, PEER)
            return await answer if inspect.isawaitable(answer) else answer
        except BadRequestError as error:
            return response_to(command, error.code, remark=error.reason)

    def prepare(self, command, real):
        """Bring the broker into the state that the real answer shows."""
        if real.code != ResponseCode.SUCCESS:
            return
        fields = command.ext_fields
        match command.code:
            case RequestCode.GET_TOPIC_STATS_INFO:
                self._fill(parse_json(bytes(real.body))["offsetTable"], "maxOffset")
            case RequestCode.GET_CONSUME_STATS:
                self._commit(fields["consumerGroup"], parse_json(bytes(real.body))["offsetTable"])
            case RequestCode.GET_BROKER_CONSUME_STATS:
                for groups in parse_json(bytes(real.body))["consumeStatsList"]:
                    for group, stats in groups.items():
                        for one in stats:
                            self._commit(group, one["offsetTable"])
            case RequestCode.QUERY_TOPIC_CONSUME_BY_WHO:
                for group in json.loads(bytes(real.body))["groupList"]:
                    self.metadata.consumer_offsets.commit(group, fields["topic"], 0, 0)
            case RequestCode.GET_CONSUMER_CONNECTION_LIST:
                self._connect(fields["consumerGroup"], json.loads(bytes(real.body)))
            case RequestCode.VIEW_BROKER_STATS_DATA if fields["statsName"] == "TOPIC_PUT_NUMS":
                self.service.admin.traffic.note_put(fields["statsKey"], 1, 1)
            case RequestCode.VIEW_BROKER_STATS_DATA:
                self.service.admin.traffic.pulls.count(fields["statsKey"], 1, 1)
            case RequestCode.GET_TOPIC_CONFIG:
                self.metadata.topics.put(TopicConfig.of(json.loads(bytes(real.body))))

    def _fill(self, table, name):
        for key, value in table.items():
            queue = dict(key)
            if queue["topic"].startswith("%RETRY%"):
                self.metadata.topics.put(TopicConfig(queue["topic"], 1, 1))
            while (
                self.store.commit_log.queue_offsets.get((queue["topic"], queue["queueId"]), 0) < value[name]
            ):
                self.put(queue["topic"], queue["queueId"])

    def _commit(self, group, table):
        self._fill(table, "brokerOffset")
        self.metadata.groups.find_or_create(group)
        for key, value in table.items():
            queue = dict(key)
            self.metadata.consumer_offsets.commit(
                group, queue["topic"], queue["queueId"], value["consumerOffset"]
            )

    def _connect(self, group, connection):
        subscriptions = {
            topic: Subscription.of_json(value) for topic, value in connection["subscriptionTable"].items()
        }
        data = ConsumerData(
            group,
            connection["consumeType"],
            connection["messageModel"],
            connection["consumeFromWhere"],
            subscriptions,
        )
        for number, member in enumerate(connection["connectionSet"], 100):
            self.service.consumers.clients.heartbeat(
                Heartbeat(member["clientId"], (), (data,)),
                connection=number,
                address=PEER.address,
                language=LanguageCode[member["language"]],
                version=member["version"],
            )

    def put(self, topic, queue_id=0, **properties):
        """Store and dispatch a message; its physical offset."""
        result = self.store.commit_log.append(
            message(b"hello", topic=topic, queue_id=queue_id, properties=encode_properties(properties))
        )
        dispatch_to_end(self.store.dispatcher, self.store.commit_log)
        return result.physical_offset


def recorded(session):
    asked = [command for command in commands(VECTORS / f"{session}.c2s.bin") if not command.is_response]
    answers = commands(VECTORS / f"{session}.s2c.bin")
    return asked, {command.opaque: command for command in answers if command.is_response}


async def here(call):
    return call()
