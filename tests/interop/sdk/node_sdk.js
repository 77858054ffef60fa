// Apache's Node SDK of gRPC: the commands and answers of python_sdk.py.
'use strict';

const readline = require('readline');
const { ConsumeResult, FilterExpression, Producer, PushConsumer, SimpleConsumer } = require('rocketmq-client-nodejs');

const COMMIT = 1; // TransactionResolution
const quiet = { info() {}, warn() {}, error: console.error, debug() {}, trace() {}, fatal: console.error };
const options = { endpoints: process.argv[2], namespace: '', requestTimeout: 20000, logger: quiet };
const clients = new Map();
const consumed = new Map();
const messages = new Map();

function described(message) {
  return {
    body: message.body.toString(),
    attempt: message.deliveryAttempt,
    tag: message.tag || null,
    group: message.messageGroup || null,
    properties: Object.fromEntries(message.properties),
  };
}

function subscriptions(asked) {
  return new Map([[asked.topic, FilterExpression.SUB_ALL]]);
}

async function start(name, client) {
  await client.startup();
  clients.set(name, client);
}

const commands = {
  async producer({ name, topics, transactions }) {
    const checker = transactions ? { check: async () => COMMIT } : undefined;
    await start(name, new Producer({ ...options, topics, checker }));
  },
  async send({ name, topic, bodies, tag, group, at_ms: atMs, transaction }) {
    const producer = clients.get(name);
    for (const body of bodies) {
      const message = {
        topic,
        tag,
        messageGroup: group,
        keys: [`key-${body}`],
        body: Buffer.from(body),
        properties: new Map([['colour', 'red']]),
        deliveryTimestamp: atMs === undefined ? undefined : new Date(atMs),
      };
      if (transaction === undefined) {
        await producer.send(message);
        continue;
      }
      const opened = producer.beginTransaction();
      await producer.send(message, opened);
      await (transaction === 'commit' ? opened.commit() : opened.rollback());
    }
  },
  async simple(asked) {
    await start(
      asked.name,
      new SimpleConsumer({
        ...options,
        consumerGroup: asked.group,
        subscriptions: subscriptions(asked),
        awaitDuration: 5000,
      }),
    );
  },
  async receive({ name, number, invisible_s: invisibleS }) {
    const found = await clients.get(name).receive(number, invisibleS * 1000);
    for (const message of found) {
      messages.set(`${name} ${message.body}`, message);
    }
    return found.map(described);
  },
  async ack({ name, bodies }) {
    for (const body of bodies) {
      await clients.get(name).ack(messages.get(`${name} ${body}`));
    }
  },
  async push(asked) {
    const seen = [];
    consumed.set(asked.name, seen);
    const failing = asked.failing || [];
    const messageListener = {
      async consume(message) {
        seen.push(described(message));
        return failing.includes(message.body.toString()) ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
      },
    };
    await start(
      asked.name,
      new PushConsumer({
        ...options,
        consumerGroup: asked.group,
        subscriptions: subscriptions(asked),
        messageListener,
      }),
    );
  },
  async consumed({ name }) {
    return consumed.get(name);
  },
  async end({ name }) {
    const client = clients.get(name);
    clients.delete(name);
    await client.shutdown();
  },
};

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const asked = JSON.parse(line);
    let answer;
    try {
      answer = { result: (await commands[asked.do](asked)) ?? null };
    } catch (error) {
      answer = { error: String(error.stack || error) };
    }
    process.stdout.write(`${JSON.stringify(answer)}\n`);
  }
  process.exit(0);
}

main();
