"""The command line of the hostile generator."""

import pytest

from tests.hostile.__main__ import main


@pytest.mark.parametrize(
    "arguments",
    [["--count", "0"], ["--seed", "-1"], ["--only", "5"], ["--only", "a:b"], ["--what"], ["--count", "many"]],
)
def test_arguments_that_cannot_be_used_are_one_line(arguments, capsys):
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("hostile: ")
    assert said.err.count("\n") == 1
