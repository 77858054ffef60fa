"""Dashboard, alert rules and the systemd unit are whole, and name only what is there."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from prometheus_client import generate_latest

from tests.metrics.making import make_sources
from tests.metrics.pages import CONFIGS, DASHBOARD, OF_PROMETHEUS, RULES, family_name, rules, uses
from tests.metrics.promql import Selector, read
from tests.metrics.scraping import documented
from trioha.cli import EXIT_REFUSED
from trioha.metrics.port import registry_of
from trioha.node.process import EXIT_FAULT

UNIT = CONFIGS / "systemd" / "trioha@.service"
DOCS = CONFIGS.parent / "docs"
PROMTOOL = shutil.which("promtool")
SYSTEMD_ANALYZE = shutil.which("systemd-analyze")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not there (Debian: prometheus)")
needs_systemd = pytest.mark.skipif(SYSTEMD_ANALYZE is None, reason="systemd-analyze is not there")


def run(*command, text=None):
    return subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, input=text, timeout=60, check=False
    )


# -- PromQL ------------------------------------------------------------------------------------------------


def test_series_and_labels_of_an_expression_are_found():
    found = read('topk(10, sum by (a, b) (rate(x_total{job="j", c=~"d|e"}[5m])) / on(a) y) > 0.5 or up == 0')
    assert found.selectors == (
        Selector("x_total", {"job": ("=", "j"), "c": ("=~", "d|e")}),
        Selector("y"),
        Selector("up"),
    )
    assert found.grouped_by == {"a", "b"}
    assert read('label_values(x{job="$job"}, instance)').grouped_by == {"instance"}
    assert read('label_values(x{job="$job"}, instance)').selectors[0].name == "x"
    for wrong in ("rat(x[5m])", "x{a='b'}", "x & y"):
        with pytest.raises(ValueError, match=r"rat|x"):
            read(wrong)


# -- dashboard and rules -----------------------------------------------------------------------------------


def test_every_series_and_label_that_dashboard_and_rules_name_is_documented():
    listed = documented()
    kinds = {name: family.kind for name, family in listed.items()}
    missing = []
    used = set()
    for use in uses():
        labels = set(OF_PROMETHEUS)
        for selector in use.expression.selectors:
            if selector.name == "up":
                continue
            name = family_name(selector.name, kinds)
            used.add(name)
            if name not in listed:
                missing.append(f"{use.place}: {selector.name}")
                continue
            own = listed[name].labels | OF_PROMETHEUS | ({"le"} if kinds[name] == "histogram" else set())
            labels |= own
            missing += [
                f"{use.place}: {selector.name}{{{label}}}" for label in selector.matchers.keys() - own
            ]
        missing += [f"{use.place}: by {label}" for label in use.expression.grouped_by - labels]
        # What is grouped has no other labels than those that it is grouped by.
        left = (use.expression.grouped_by or labels) | OF_PROMETHEUS
        if use.place.startswith("variable"):
            left = labels
        missing += [f"{use.place}: shows {label}" for label in use.shown_labels - left]
    assert missing == []
    # The other way round: nearly everything that is served is on the dashboard or has a rule.
    assert len(used) > 40


def test_the_dashboard_shows_what_controller_mode_serves():
    """Ids and times of a node, and what other panels show of the same change, have no panel."""
    served = {name for name in documented() if name.startswith("trioha_control_")}
    shown = {
        selector.name
        for use in uses()
        if use.place.startswith("panel")
        for selector in use.expression.selectors
    }
    assert len(served) == 17
    assert served - shown == {
        "trioha_control_broker_id",
        "trioha_control_sync_state_set_epoch",
        "trioha_control_role_timestamp_seconds",
        "trioha_control_member_ack_offset_bytes",
    }
    cuts = [use.text for use in uses() if 'reason="CUT_REFUSED"' in use.text]
    assert len(cuts) == 1


def test_rates_are_of_counters_and_thresholds_of_gauges():
    """`rate` of a gauge and a counter without `rate` are the usual mistakes."""
    kinds = {name: family.kind for name, family in documented().items()}
    for use in uses():
        for selector in use.expression.selectors:
            name = family_name(selector.name, kinds)
            rated = re.search(rf"(rate|increase)\({selector.name}\b[^)]*\[", use.text) is not None
            assert rated == (kinds.get(name) in {"counter", "histogram"}), (use.place, selector.name)


def test_every_alert_has_a_severity_texts_and_a_row_of_what_to_do():
    rows = re.findall(r"^\| (Trioha\w+) \|", (DOCS / "operations.md").read_text(), re.MULTILINE)
    names = [rule["alert"] for rule in rules()]
    assert rows == names
    assert len(set(names)) == len(names)
    for rule in rules():
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert set(rule["annotations"]) == {"summary", "description"}
        assert "$labels.instance" in rule["annotations"]["summary"]


def test_the_dashboard_has_panels_that_do_not_overlap_and_ids_that_differ():
    dashboard = json.loads(DASHBOARD.read_text())
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
        for target in panel.get("targets", ()):
            # Only nodes that are chosen above are drawn.
            assert target["expr"].count('job="$job", instance=~"$instance"') >= 1, panel["title"]
    variables = {one["name"] for one in dashboard["templating"]["list"]}
    named = set(re.findall(r"\$\{?(\w+)", json.dumps(panels))) - {"__rate_interval"}
    assert named <= variables


@needs_promtool
def test_promtool_accepts_the_rules():
    found = run(PROMTOOL, "check", "rules", RULES)
    assert found.returncode == 0, found.stdout + found.stderr
    assert f"{len(rules())} rules found" in found.stdout


@needs_promtool
def test_alerts_fire_in_prometheus_own_tests():
    found = run(PROMTOOL, "test", "rules", Path(__file__).parent / "alerts_test.yml")
    assert found.returncode == 0, found.stdout + found.stderr


@needs_promtool
def test_promtool_finds_nothing_in_the_metrics_to_complain_of():
    async def text():
        return generate_latest(registry_of(make_sources())).decode()

    found = run(PROMTOOL, "check", "metrics", text=trio.run(text))
    assert (found.returncode, found.stdout + found.stderr) == (0, "")


# -- systemd -----------------------------------------------------------------------------------------------


def unit_lines():
    lines = UNIT.read_text().splitlines()
    return [line for line in lines if line and not line.startswith(("#", "["))]


def test_the_unit_starts_a_node_again_unless_an_operator_must_look_first():
    lines = unit_lines()
    assert "Restart=on-failure" in lines
    # What `trioha.node.service_manager` says.
    assert "Type=notify" in lines
    assert any(line.startswith("WatchdogSec=") for line in lines)
    assert f"RestartPreventExitStatus={EXIT_REFUSED}" in lines
    assert EXIT_FAULT != EXIT_REFUSED
    assert any(line.startswith("LimitNOFILE=") for line in lines)
    assert len({line.partition("=")[0] for line in lines} - {"Description"}) == len(lines) - 1


def test_the_command_of_the_unit_is_one_that_trioha_accepts(tmp_path):
    (command,) = (line.removeprefix("ExecStart=") for line in unit_lines() if line.startswith("ExecStart="))
    program, *arguments = command.replace("%i", "orders").split()
    assert program == "/opt/trioha/bin/trioha"
    # The configuration is not there, and that is all that is wrong.
    found = run(sys.executable, "-m", "trioha", *arguments)
    assert found.returncode == EXIT_REFUSED
    assert found.stderr.startswith("trioha: /etc/trioha/orders.conf: cannot be read")


@needs_systemd
def test_systemd_accepts_the_unit_and_finds_it_closed(tmp_path):
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/trioha/bin/trioha", sys.executable))
    found = run(SYSTEMD_ANALYZE, "verify", "--man=no", unit)
    assert found.returncode == 0, found.stderr
    assert [line for line in found.stderr.splitlines() if "trioha" in line] == []
    # A unit with an error is not accepted in silence.
    unit.write_text(unit.read_text().replace("NoNewPrivileges=", "NoNewPrivilege="))
    assert "NoNewPrivilege" in run(SYSTEMD_ANALYZE, "verify", "--man=no", unit).stderr
    shutil.copy(UNIT, unit)
    exposed = run(SYSTEMD_ANALYZE, "security", "--offline=true", "--no-pager", "--threshold=25", unit)
    assert exposed.returncode == 0, exposed.stdout + exposed.stderr
