"""trioha's commands on real brokers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.node_process import WITHIN_S, run_trioha
from tests.waiting import wait_until

Findings = dict[str, dict[str, str]]
TIMEOUT_S = 20
"""For each request and connection of the doctor, on a busy machine."""


def examine(*arguments: str | Path) -> Findings:
    """The findings of `trioha doctor` by id, the first of each."""
    answer = run_trioha("doctor", "--json", "--timeout", str(TIMEOUT_S), *arguments)
    assert answer.stderr == "", answer.stderr
    found: Findings = {}
    for finding in json.loads(answer.stdout)["findings"]:
        found.setdefault(finding["id"], finding)
    return found


def status(address: str) -> dict[str, Any]:
    """`trioha status --json`, again while a 4.9.7 broker is in its first second: its runtime info needs a
    sample that is not there yet, and it answers SYSTEM_ERROR (NoSuchElementException)."""
    brokers: list[dict[str, Any]] = []

    def is_answered() -> bool:
        answer = run_trioha("status", address, "--json", "--reachable")
        if answer.exit_code == 0:
            brokers[:] = json.loads(answer.stdout)["brokers"]
        else:
            assert "NoSuchElementException" in answer.stderr, answer
        return answer.exit_code == 0

    wait_until(is_answered, "the broker has figures")
    (broker,) = brokers
    return broker


def consume(topic: str, name_servers: str, *arguments: str) -> list[dict[str, Any]]:
    """The messages that `trioha consume` prints."""
    said = run_trioha("consume", topic, "--namesrv", name_servers, *arguments)
    assert said.exit_code == 0, said.stderr
    return [json.loads(line) for line in said.stdout.splitlines()]


def produce(topic: str, name_servers: str, messages: list[dict[str, Any]]) -> list[str]:
    """Statuses of messages that `trioha produce` sends."""
    done = subprocess.run(
        [sys.executable, "-m", "trioha", "produce", topic, "--namesrv", name_servers, "--ndjson", "--json"],
        input="".join(json.dumps(message) + "\n" for message in messages),
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line)["status"] for line in done.stdout.splitlines()]
