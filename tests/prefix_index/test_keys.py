from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from prefix_index.encoding.protocol import Namespace
from prefix_index.keys import ChainState, extend, root_state
from vocabulary import KEY_BYTES

names = st.text(alphabet="ab\0é", max_size=4)
namespaces = st.tuples(st.binary(max_size=4), names, names, names, st.integers(1, 300))


@given(namespaces, namespaces)
def test_two_namespaces_have_one_root_only_if_they_are_equal(
    one: tuple[bytes, str, str, str, int], two: tuple[bytes, str, str, str, int]
) -> None:
    roots = [root_state(secret, Namespace(*texts), size) for secret, *texts, size in (one, two)]
    assert (roots[0] == roots[1]) == (one == two)


def test_fields_cannot_be_shifted_into_each_other() -> None:
    shifted = [Namespace("ab", "c", ""), Namespace("a", "bc", ""), Namespace("abc", "", ""), Namespace("", "", "abc")]
    assert len({root_state(b"", namespace, 16) for namespace in shifted}) == 4


@given(st.binary(max_size=400), st.lists(st.integers(0, 400)), st.integers(1, 70))
def test_keys_do_not_depend_on_how_the_bytes_were_cut(data: bytes, cuts: list[int], block: int) -> None:
    root = root_state(b"s", Namespace("m"), block)
    whole, end = extend(root, data, block)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    state, keys = root, b""
    for low, high in itertools.pairwise(edges):
        more, state = extend(state, data[low:high], block)
        keys += more
    assert (keys, state) == (whole, end)
    assert len(whole) == len(data) // block * KEY_BYTES
    assert len(end.partial) == len(data) % block


@given(st.binary(min_size=64, max_size=256), st.binary(max_size=64), st.binary(max_size=64))
def test_a_key_names_everything_before_it_and_nothing_after(head: bytes, one: bytes, two: bytes) -> None:
    root = root_state(b"s", Namespace("m"), 16)
    keys, _ = extend(root, head, 16)
    for tail in (one, two):
        assert extend(root, head + tail, 16)[0].startswith(keys)
    changed, _ = extend(root, bytes([head[0] ^ 1]) + head[1:], 16)
    assert not {keys[at : at + 8] for at in range(0, len(keys), 8)} & {
        changed[at : at + 8] for at in range(0, len(changed), 8)
    }


def test_the_format_is_pinned() -> None:
    """A change here makes every stored index unreachable: raise KEY_VERSION with it."""
    root = root_state(b"secret", Namespace("model", "adapter", "salt"), 4)
    assert root == ChainState(bytes.fromhex("7682f4489a88fd337afd1e7c9002d9bc"))
    keys, state = extend(root, b"abcdefghij", 4)
    assert keys == bytes.fromhex("1580a1c038b59957768943a84b852347")
    assert state.partial == b"ij"
