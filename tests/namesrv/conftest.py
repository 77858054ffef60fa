"""What all tests of the name server share."""

from tests.remoting.conftest import answers_may_take_long  # noqa: F401 - a fixture
