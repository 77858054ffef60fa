"""What a repository has beside its code fits the code: workflow, hooks, editors' settings, uv's lock."""

import re
import tomllib
from configparser import ConfigParser
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
UV_LOCK = tomllib.loads((ROOT / "uv.lock").read_text())
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def workflow_jobs():
    return yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]


def test_the_workflow_runs_make_test_on_each_python_that_is_promised():
    matrix = workflow_jobs()["test"]["strategy"]["matrix"]
    classifiers = "\n".join(PROJECT["project"]["classifiers"])
    assert matrix["python"] == re.findall(r"Python :: (3\.\d+)$", classifiers, re.MULTILINE)
    assert len(matrix["python"]) == 3
    assert matrix["target"] == ["test"]


def test_the_workflow_runs_what_the_ci_runs_by_targets_that_there_are():
    matrix = workflow_jobs()["test"]["strategy"]["matrix"]
    steps = [step.get("run", "") for job in workflow_jobs().values() for step in job["steps"]]
    called = set(re.findall(r"\bmake ([a-z-]+)", "\n".join(steps)))
    called |= {*matrix["target"], *(each["target"] for each in matrix["include"])}
    assert called == set(re.findall(r"^make ([a-z-]+)$", (ROOT / ".ci/run").read_text(), re.MULTILINE))
    assert called <= TARGETS


def test_a_commit_is_checked_by_make_lint():
    ((hook,),) = (
        each["hooks"] for each in yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    )
    assert (hook["entry"], hook["pass_filenames"]) == ("make lint", False)
    assert "lint" in TARGETS
    for name in ("trioha/errors.py", "tests/metrics/promql.py", "pyproject.toml"):
        assert re.search(hook["files"], name)


def test_editors_break_lines_where_ruff_does():
    settings = ConfigParser()
    settings.read_string("[top]\n" + (ROOT / ".editorconfig").read_text())
    assert settings["top"]["root"] == "true"
    assert int(settings["*.py"]["max_line_length"]) == PROJECT["tool"]["ruff"]["line-length"]


def test_uv_and_pip_install_the_same_versions_from_the_same_index():
    locked = [each for each in UV_LOCK["package"] if each["name"] != "trioha"]
    assert {each["source"]["registry"] for each in locked} == {"https://pypi.org/simple"}
    for_pip = re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert {(each["name"], each["version"]) for each in locked} == set(for_pip)


def test_uv_takes_trioha_from_the_checkout_and_knows_all_that_it_requires():
    (own,) = (each for each in UV_LOCK["package"] if each["name"] == "trioha")
    assert own["source"] == {"editable": "."}
    assert PROJECT["tool"]["uv"]["sources"] == {"trioha": {"workspace": True}}
    project, groups = PROJECT["project"], PROJECT["dependency-groups"]
    assert groups["extras"] == ["trioha[all]"]
    extras = (text for texts in project["optional-dependencies"].values() for text in texts)
    required = {re.split(r"[^\w-]", text)[0] for text in (*project["dependencies"], *extras, *groups["dev"])}
    known = [*own["metadata"]["requires-dist"], *own["metadata"]["requires-dev"]["dev"]]
    assert {each["name"] for each in known} == required - {"trioha"}
    # The default of `uv sync` and `uv run` has what the demo needs.
    assert PROJECT["tool"]["uv"]["default-groups"] == ["dev", "extras"]


def test_wheels_are_built_by_the_version_of_cibuildwheel_that_make_dist_checks():
    text = (ROOT / ".github/workflows/wheels.yml").read_text()
    steps = "\n".join(step.get("run", "") for step in yaml.safe_load(text)["jobs"]["wheels"]["steps"])
    assert "grep '^cibuildwheel==' tests/release/tools.txt" in steps
    assert re.search(r"^cibuildwheel==[\d.]+$", (ROOT / "tests/release/tools.txt").read_text(), re.MULTILINE)
    matrix = yaml.safe_load(text)["jobs"]["wheels"]["strategy"]["matrix"]["include"]
    assert [each["processor"] for each in matrix] == PROJECT["tool"]["cibuildwheel"]["linux"]["archs"]
