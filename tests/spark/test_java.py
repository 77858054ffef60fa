"""Errors about missing or unsuitable Java."""

import pytest

from trioha_spark.java import JavaError, require_java


def fake_java(folder, output):
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{output}' >&2\n")
    java.chmod(0o755)
    return java


@pytest.fixture
def no_java(monkeypatch, tmp_path):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))


@pytest.mark.usefixtures("no_java")
def test_missing_java_is_one_line_with_a_hint():
    with pytest.raises(JavaError) as caught:
        require_java()
    assert str(caught.value) == (
        "Spark needs Java 17 or newer, and there is none; "
        "install Java 17 or newer (a JRE is enough), or set JAVA_HOME to one"
    )


@pytest.mark.usefixtures("no_java")
def test_old_java_is_named_with_its_version(monkeypatch, tmp_path):
    java = fake_java(tmp_path / "eight", 'openjdk version "1.8.0_412"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "eight"))
    with pytest.raises(JavaError, match=r"but .*java is version 8; install Java 17") as caught:
        require_java()
    assert str(java) in str(caught.value)


@pytest.mark.usefixtures("no_java")
def test_broken_java_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    with pytest.raises(JavaError, match="java is not a working Java"):
        require_java()


@pytest.mark.usefixtures("no_java")
@pytest.mark.parametrize(
    "output",
    ['openjdk version "17.0.15" 2025-04-15', 'java version "21" 2023-09-19 LTS', 'openjdk version "17-ea"'],
)
def test_java_of_java_home_is_used(monkeypatch, tmp_path, output):
    java = fake_java(tmp_path / "home", output)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert require_java() == java


@pytest.mark.usefixtures("no_java")
def test_java_on_the_path_is_used_if_that_of_java_home_is_too_old(monkeypatch, tmp_path):
    fake_java(tmp_path / "eleven", 'openjdk version "11.0.2"')
    java = fake_java(tmp_path / "seventeen", 'openjdk version "17.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "eleven"))
    monkeypatch.setenv("PATH", str(java.parent))
    assert require_java() == java
