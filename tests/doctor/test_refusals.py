"""What `trioha node` refuses in a broker.conf, the doctor finds in it: both read it by one reader."""

import ast
from pathlib import Path

import pytest

from tests.config.test_checks import REFUSED, cases
from trioha.config import checks
from trioha.config.broker import SETTINGS
from trioha.doctor.conf_files import conf_facts, read_conf
from trioha.doctor.diagnosis import diagnose
from trioha.doctor.facts import Facts
from trioha.severity import Severity

ALL = [
    *cases(REFUSED),
    # It depends on ROCKETMQ_HOME.
    (
        "aclEnable=true",
        " trioha.aclFile: is missing, but aclEnable is true; give the path of a plain_acl.yml",
    ),
]


@pytest.mark.parametrize(("text", "refusal"), ALL)
def test_what_a_node_refuses_in_a_file_is_a_finding_whoever_the_file_is_for(text, refusal, monkeypatch):
    for variable in ("NAMESRV_ADDR", "ROCKETMQ_HOME"):
        monkeypatch.delenv(variable, raising=False)
    conf = conf_facts(text.encode(), path="broker.conf")
    unknown = diagnose(Facts(files=(conf,)), least=Severity.WARNING)
    assert unknown, "exit code 1"
    own = diagnose(Facts(files=(conf,), assumed_version="trioha"), least=Severity.CRITICAL)
    assert f"broker.conf:{refusal}".strip() in {finding.evidence for finding in own}


def test_the_refusals_above_are_those_of_all_settings_that_are_checked_together():
    tree = ast.parse(Path(checks.__file__).read_text())
    named = {
        node.targets[0].id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    checked = set()
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "Contradiction":
            attributes = call.args[0]
            if isinstance(attributes, ast.Name):
                attributes = named[attributes.id]
            assert isinstance(attributes, ast.Tuple)
            if isinstance(attributes.elts[0], ast.Constant):
                checked.add(attributes.elts[0].value)
    assert len(checked) > 15
    said = " ".join(refusal for _, refusal in ALL)
    assert {name for name in checked if f" {SETTINGS[name].key}: " not in said} == set()


@pytest.mark.parametrize(
    ("text", "evidence"),
    [
        ("aclEnable=true\ntrioha.aclFile=@/none.yml", "none.yml: cannot be read"),
        ("aclEnable=true\ntrioha.aclFile=@/bad", "is not YAML"),
        (
            "trioha.haTlsCert=@/bad\ntrioha.haTlsKey=@/bad\ntrioha.haTlsCa=@/bad",
            "trioha.haTlsCert: ",
        ),
        ("tls.server.certPath=@/none.pem\ntls.server.keyPath=@/none.pem", "tls.server.certPath: "),
        (
            "tls.enable=true\ntls.client.authServer=true\ntls.client.trustCertPath=@/bad",
            "tls.client.trustCertPath: ",
        ),
    ],
)
def test_files_that_a_node_could_not_use_are_findings(tmp_path, text, evidence):
    (tmp_path / "bad").write_text("accounts: [")
    path = tmp_path / "broker.conf"
    path.write_text(text.replace("@", str(tmp_path)))
    conf = read_conf(path)
    assert len(conf.file_problems) == 1
    of_trioha = "trioha." in text
    for version in ("trioha", None, "5.5.0"):
        found = diagnose(Facts(files=(conf,), assumed_version=version))
        severities = [one.severity for one in found if "on this host" in one.evidence]
        if of_trioha or version == "trioha":
            assert severities == [Severity.CRITICAL]
        else:
            # RocketMQ has its own ways to open them.
            assert severities == ([] if version else [Severity.WARNING])
        assert all(evidence in one.evidence for one in found if "on this host" in one.evidence)
