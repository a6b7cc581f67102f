from __future__ import annotations

import pytest

from backends.load import read_samples

PAGE = b"""# HELP e:running Number of requests.
# TYPE e:running gauge
e:running{engine="0"} 3.0
e:running{engine="1"} 2.0
e:usage{engine="0"} 0.25
e:usage{engine="1"} 0.75
e:config_info{size="32"} 1.0
e:odd NaN
other:running 9
"""
NAMES = ("e:running", "e:usage", "e:config_info", "e:odd")


def test_ranks_are_summed_or_averaged() -> None:
    samples = read_samples(PAGE, NAMES)
    assert samples.total("e:running") == 5
    assert samples.mean("e:missing", "e:usage") == 0.5
    assert samples.first("e:usage") == 0.25
    assert samples.labels("e:config_info") == [{"size": "32"}]


def test_what_is_not_there_is_none() -> None:
    samples = read_samples(PAGE, NAMES)
    assert (samples.total("other:running"), samples.mean("e:odd"), samples.first("x")) == (None, None, None)
    assert samples.labels("x") == []
    assert samples.has_prefix("e:")
    assert not samples.has_prefix("other:"), "only the names that were asked for are read"


@pytest.mark.parametrize("page", [b"e:running{ 3\n", b"e:running \xff\n", b"e:running three\n"])
def test_a_broken_line_is_a_value_error(page: bytes) -> None:
    with pytest.raises(ValueError):
        read_samples(page, NAMES)
