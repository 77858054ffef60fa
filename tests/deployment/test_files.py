"""Compose files, Kubernetes manifests and the image fit trioha and each other.

Linters run where they are on the PATH; docs/containers.md says how they come there.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deployment.containerfile import CONTAINERFILE, ROOT, copied, stages
from trioha import __version__
from trioha.cli import COMMANDS
from trioha.config.broker import BrokerConfig, BrokerRole
from trioha.config.loading import load_config
from trioha.metrics.probes import LIVE, READY

COMPOSE = ROOT / "configs/compose"
KUBERNETES = ROOT / "configs/kubernetes"
IMAGE = f"localhost/trioha:{__version__}"
COMPOSE_FILES = sorted(COMPOSE.glob("*.yml"))
LINT_WITHIN_S = 200.0


def services(file: Path) -> dict[str, dict[str, Any]]:
    return yaml.safe_load(file.read_text())["services"]


def services_of_trioha() -> Iterator[tuple[Path, str, dict[str, Any]]]:
    for file in COMPOSE_FILES:
        for name, service in services(file).items():
            if "trioha" in service["image"]:
                yield file, name, service


def manifests() -> list[dict[str, Any]]:
    files = [*KUBERNETES.glob("base/*.yaml"), *KUBERNETES.glob("prometheus/*.yaml")]
    return [each for file in files for each in yaml.safe_load_all(file.read_text())]


def manifest(kind: str, name: str) -> dict[str, Any]:
    (found,) = (each for each in manifests() if each["kind"] == kind and each["metadata"]["name"] == name)
    return found


def config(file: Path) -> BrokerConfig:
    """Of a container, where nothing is of this machine. It has no warnings."""
    loaded = load_config(file, ["brokerIP1=10.0.0.9"])
    assert loaded.warnings == ()
    assert loaded.config.store_path_root_dir == Path("/var/lib/trioha/store")
    assert loaded.config.bind_address == "0.0.0.0"
    assert (loaded.config.listen_port, loaded.config.ha_listen_port, loaded.config.metrics_port) == (
        10911,
        10912,
        9108,
    )
    return loaded.config


def assert_pair(master: BrokerConfig, slave: BrokerConfig, *, master_host: str) -> None:
    assert (master.broker_role, slave.broker_role) == (BrokerRole.SYNC_MASTER, BrokerRole.SLAVE)
    assert slave.ha_master_endpoint == (master_host, master.ha_listen_port)
    assert (slave.broker_cluster_name, slave.broker_name) == (master.broker_cluster_name, master.broker_name)
    assert slave.namesrv_addr == master.namesrv_addr
    assert (master.broker_id, slave.broker_id) == (0, 1)


# -- the image ---------------------------------------------------------------------------------------------


def test_the_image_is_of_files_that_its_ignore_file_leaves_in():
    patterns = (ROOT / ".dockerignore").read_text().split("\n")
    kept = {line[1:] for line in patterns if line.startswith("!")}
    taken = {source.removeprefix("./") for sources, _ in copied(stages()[0]) for source in sources}
    assert taken == kept
    assert [name for name in taken if not (ROOT / name).exists()] == []
    assert "*" in patterns
    # Compiled modules are of the checkout's Python.
    assert {"**/*.so", "**/__pycache__"} <= set(patterns)


def test_the_image_is_built_of_all_that_a_wheel_holds():
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]
    packages = {name.partition("/")[0] for name in build["wheel"]["packages"]}
    # And of what the build hook puts into it, of its metadata, and of what builds it.
    others = {"configs", "README.md", "LICENSE", "hatch_build.py", "pyproject.toml"}
    taken = {source for sources, _ in copied(stages()[0]) for source in sources}
    assert taken == packages | others | {"requirements.lock"}
    assert packages | others <= {name.lstrip("/") for name in build["sdist"]["include"]}


def test_the_image_runs_as_a_number_and_serves_the_usual_ports():
    build, last = stages()
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", last.one("USER").text)
    ports = set(map(int, last.one("EXPOSE").text.split()))
    usual = config(COMPOSE / "pair/master.conf")
    assert ports == {usual.listen_port, usual.listen_port - 2, usual.ha_listen_port, usual.metrics_port, 9876}
    assert last.one("ENTRYPOINT").json_words() == ["trioha"]
    assert last.variables["TRIOHA_METRICS_PORT"] == str(usual.metrics_port)
    assert f"('127.0.0.1', {usual.metrics_port}, " in last.one("HEALTHCHECK").json_words()[-1]
    assert f"'GET', '{LIVE}'" in last.one("HEALTHCHECK").json_words()[-1]
    assert f"trioha:{__version__} ." in CONTAINERFILE.read_text()
    assert build.variables["EXTRAS"].split(",") == ["archive", "monitor"]


# -- compose -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [*services_of_trioha()], ids=lambda place: f"{place[0].name}-{place[1]}")
def test_a_service_of_trioha_has_a_root_that_is_read_only_and_no_privileges(place):
    file, _, service = place
    assert service["image"] == IMAGE
    assert (file.parent / service["build"]["context"]).resolve() == ROOT
    assert ROOT / service["build"]["dockerfile"] == CONTAINERFILE
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    command, *arguments = service["command"]
    assert command in COMMANDS
    mounted = [volume.split(":") for volume in service.get("volumes", [])]
    if command == "node":
        assert arguments[1] in {inside for _, inside, *_ in mounted}
    # Whatever is written goes to the volume.
    assert stages()[1].one("VOLUME").text in {inside for _, inside, *_ in mounted}


@pytest.mark.parametrize("file", COMPOSE_FILES, ids=lambda file: file.name)
def test_a_compose_file_names_files_volumes_and_services_that_are_there(file):
    whole = yaml.safe_load(file.read_text())
    others = services(COMPOSE / "pair.yml") if file.name == "proxy.yml" else {}
    for service in whole["services"].values():
        assert set(service.get("depends_on", [])) <= {*whole["services"], *others}
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            known = source in whole["volumes"] if "/" not in source else (COMPOSE / source).is_file()
            assert known, volume


def test_the_pair_of_the_compose_file_fits():
    master, slave = config(COMPOSE / "pair/master.conf"), config(COMPOSE / "pair/slave.conf")
    assert_pair(master, slave, master_host="master")
    named = services(COMPOSE / "pair.yml")
    assert {"master", "slave", "namesrv", "monitor", "prometheus"} <= set(named)
    assert master.namesrv_addr == ("namesrv:9876",)
    scraped = yaml.safe_load((COMPOSE / "pair/prometheus.yml").read_text())["scrape_configs"]
    assert [(each["job_name"], each["static_configs"]) for each in scraped] == [
        ("trioha", [{"targets": [f"master:{master.metrics_port}", f"slave:{slave.metrics_port}"]}])
    ]


def test_the_replica_of_the_compose_file_follows_its_broker():
    replica = config(COMPOSE / "replica/replica.conf")
    broker = load_config(COMPOSE / "replica/broker.conf", ["brokerIP1=10.0.0.9"]).config
    assert replica.broker_role is BrokerRole.SLAVE
    assert replica.ha_master_endpoint == ("broker", broker.ha_listen_port)
    assert (replica.broker_name, replica.namesrv_addr) == (broker.broker_name, broker.namesrv_addr)
    assert {"namesrv", "broker", "replica"} <= set(services(COMPOSE / "replica.yml"))


# -- Kubernetes --------------------------------------------------------------------------------------------


def test_every_pod_has_a_root_that_is_read_only_and_no_privileges():
    pods = [each["spec"]["template"] for each in manifests() if each["kind"] == "StatefulSet"]
    assert len(pods) == 2
    user = int(stages()[1].one("USER").text.partition(":")[0])
    for pod in pods:
        (container,) = pod["spec"]["containers"]
        assert (
            pod["spec"]["securityContext"]["runAsUser"],
            pod["spec"]["securityContext"]["runAsNonRoot"],
        ) == (
            user,
            True,
        )
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["args"][0] in COMMANDS
        named = {port["name"] for port in container["ports"]}
        for probe in (name for name in container if name.endswith("Probe")):
            (asked,) = (
                container[probe][kind] for kind in ("httpGet", "tcpSocket") if kind in container[probe]
            )
            assert asked["port"] in named
        assert stages()[1].one("VOLUME").text in {mount["mountPath"] for mount in container["volumeMounts"]}


def test_the_probes_of_a_node_are_its_own_pages():
    (container,) = manifest("StatefulSet", "trioha")["spec"]["template"]["spec"]["containers"]
    assert container["livenessProbe"]["httpGet"]["path"] == LIVE
    assert container["readinessProbe"]["httpGet"]["path"] == READY


def test_each_pod_of_the_pair_has_its_file():
    pair, names = manifest("StatefulSet", "trioha"), manifest("StatefulSet", "namesrv")
    files = [f"trioha-{number}.conf" for number in range(pair["spec"]["replicas"])]
    generated = manifests_of("Kustomization", "base")["configMapGenerator"]
    assert generated == [{"name": "trioha", "files": files}]
    master, slave = (config(KUBERNETES / "base" / file) for file in files)
    # POD.SERVICE: the names of a StatefulSet.
    assert_pair(master, slave, master_host=f"trioha-0.{pair['spec']['serviceName']}")
    servers = range(names["spec"]["replicas"])
    assert master.namesrv_addr == tuple(
        f"namesrv-{one}.{names['spec']['serviceName']}:9876" for one in servers
    )


def manifests_of(kind: str, folder: str) -> dict[str, Any]:
    found = yaml.safe_load((KUBERNETES / folder / "kustomization.yaml").read_text())
    assert found["kind"] == kind
    return found


def test_services_budgets_and_the_service_monitor_select_the_pods_that_they_name():
    for name in ("trioha", "namesrv"):
        labels = manifest("StatefulSet", name)["spec"]["template"]["metadata"]["labels"]
        assert manifest("Service", name)["spec"]["selector"] == labels
        budget = manifest("PodDisruptionBudget", name)["spec"]
        assert budget == {"maxUnavailable": 1, "selector": {"matchLabels": labels}}
    service, monitor = manifest("Service", "trioha"), manifest("ServiceMonitor", "trioha")
    assert monitor["spec"]["selector"]["matchLabels"] == service["metadata"]["labels"]
    assert {each["port"] for each in monitor["spec"]["endpoints"]} <= {
        port["name"] for port in service["spec"]["ports"]
    }
    # The job that the alert rules expect.
    assert service["metadata"]["labels"][monitor["spec"]["jobLabel"]] == "trioha"


def test_kustomize_is_given_every_manifest_and_the_version_of_the_image():
    base = manifests_of("Kustomization", "base")
    there = {file.name for file in (KUBERNETES / "base").glob("*.yaml")} - {"kustomization.yaml"}
    assert set(base["resources"]) == there
    assert base["images"] == [{"name": "trioha", "newName": "localhost/trioha", "newTag": __version__}]
    assert manifests_of("Kustomization", "prometheus")["resources"] == ["../base", "service-monitor.yaml"]


# -- linters -----------------------------------------------------------------------------------------------


def lint(*command: str | Path, stdin: str = "") -> str:
    """The output of a linter that finds nothing; the test is skipped where it is not installed."""
    if shutil.which(str(command[0])) is None:
        pytest.skip(f"{command[0]} is not on the PATH: see docs/containers.md")
    done = subprocess.run(
        list(map(str, command)),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=LINT_WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.full
def test_hadolint_finds_nothing_in_the_containerfile():
    lint("hadolint", CONTAINERFILE)


@pytest.mark.full
def test_compose_files_have_the_schema_of_compose():
    lint("check-jsonschema", "--builtin-schema", "vendor.compose-spec", *COMPOSE_FILES)


@pytest.mark.full
def test_the_workflow_has_the_schema_of_its_host():
    lint("check-jsonschema", "--builtin-schema", "vendor.github-workflows", ROOT / ".github/workflows/ci.yml")


@pytest.mark.full
def test_what_kustomize_makes_has_the_schemas_of_kubernetes(tmp_path):
    made = tmp_path / "manifests.yaml"
    made.write_text(lint("kubectl", "kustomize", KUBERNETES / "base"))
    assert IMAGE in made.read_text()
    lint("kubernetes-validate", "--strict", made)
    # Of the operator's own kind, for which there is no schema here.
    assert "kind: ServiceMonitor" in lint("kubectl", "kustomize", KUBERNETES / "prometheus")
