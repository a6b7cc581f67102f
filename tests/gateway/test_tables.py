"""What people see of status and decisions."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from gateway.explain import explain
from gateway.tables import explain_table, status_table
from tests.support.fleet import Fleet

STATUS: dict[str, Any] = {
    "version": "1.2.3",
    "config": "abc",
    "ready": True,
    "draining": False,
    "backends": [
        {
            "name": "gpu-1",
            "state": "up",
            "trust": "estimated",
            "models": ["m", "n"],
            "in_flight": 3,
            "pending_uncached_tokens": 12345,
            "indexed_blocks": 678,
            "live_tokens": 9000,
            "capacity_tokens": 450000,
            "prefill": {"s_per_token": 2.2e-5},
            "engine": {"running": 1, "waiting": 4, "kv_usage": 0.25},
        },
        {
            "name": "gpu-2",
            "state": "down",
            "trust": "blind",
            "models": [],
            "in_flight": 0,
            "pending_uncached_tokens": 0,
            "indexed_blocks": 0,
            "live_tokens": 0,
            "capacity_tokens": None,
            "prefill": {"s_per_token": 2.2e-5},
            "engine": None,
        },
    ],
    "index": {"blocks": 1000, "entries": 2000, "max_entries": 3000, "evicted_total": 4},
    "sessions": {"sessions": 12, "live": 5},
}


def written(show: Any, value: Any) -> list[str]:
    out = io.StringIO()
    show(value, Console(file=out, width=200))
    return out.getvalue().splitlines()


def test_status_table() -> None:
    head, titles, one, two, tail = written(status_table, STATUS)
    assert head == "warmroute 1.2.3: ready, config abc"
    assert titles.split()[:4] == ["backend", "state", "trust", "models"]
    assert one.split()[:4] == ["gpu-1", "up", "estimated", "m,n"]
    assert one.split()[4:] == ["3", "12,345", "678", "9,000", "450,000", "25%", "4", "22.0"]
    assert two.split() == ["gpu-2", "down", "blind", "-", "0", "0", "0", "0", "-", "-", "-", "22.0"]
    assert tail == "index: 1,000 blocks, 2,000 of 3,000 entries, 4 evicted; sessions: 12 known, 5 live"


@pytest.mark.parametrize(("ready", "draining", "word"), [(False, True, "draining"), (False, False, "not ready")])
def test_status_table_says_when_it_is_not_ready(ready: bool, draining: bool, word: str) -> None:
    assert f": {word}, " in written(status_table, {**STATUS, "ready": ready, "draining": draining})[0]


def test_status_table_names_what_is_suspected() -> None:
    suspect = {"cause": "cold_restart", "since_s": 12.3, "detail": "8 of 10 found nothing"}
    one, two = STATUS["backends"]
    shown = written(status_table, {**STATUS, "backends": [{**one, "suspect": suspect}, {**two, "suspect": None}]})
    assert shown[4] == "gpu-1 suspect: cold_restart, for 12 s: 8 of 10 found nothing"
    assert len(shown) == 6


def test_status_table_tells_of_a_refused_config_and_of_discovery_first() -> None:
    reload = {"problems": ["w.yaml:3:10: backends[0].url: no"], "restart_needed": ["store.url", "listen.port"]}
    source = {"name": "pool", "kind": "dns", "found": 3, "ready": 2, "answer_age_s": 4.2, "refused": {"x": "why"}}
    silent = {**source, "name": "quiet", "answer_age_s": None, "refused": {}, "last_error": "NoAnswer"}
    shown = {**STATUS, "reload": reload, "discovery": [{**source, "last_error": None}, silent]}
    lines = written(status_table, shown)
    assert lines[1:4] == [
        "the config on disk was refused, an older one runs:",
        "  w.yaml:3:10: backends[0].url: no",
        "waits for a restart: store.url, listen.port",
    ]
    assert lines[-3:-1] == [
        "discovery pool (dns): 3 found, 2 ready, answered 4 s ago, 1 refused",
        "discovery quiet (dns): 3 found, 2 ready, no answer yet, last error NoAnswer",
    ]


def body(text: str = "hello " * 300) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()


@pytest.mark.parametrize("policy", ["warm", "round_robin", "least_requests", "longest_prefix", "lmetric", "random"])
def test_explain_table_of_every_kind_of_policy(policy: str) -> None:
    with Fleet(policy=policy) as fleet:
        for name in "abc":
            fleet.add(name)
        fleet.router.settle(fleet.router.place(fleet.prepare(body())), None, 0)
        last = fleet.add("d")
        last.draining = True
        record = explain(fleet.router, fleet.prepare(body()), fleet.now_s)
        lines = written(explain_table, record)
        assert lines[0].startswith(f"{record['backend']} by {policy} ({record['kind']}), model m, ")
        assert lines[0].endswith(" predicted cached")
        rows = [line.split() for line in lines[2:]]
        assert sorted(row[0] for row in rows) == ["a", "b", "c", "d"]
        assert rows[-1][0] == "d", "the rejected last"
        assert rows[-1][-1] == "draining"
        assert [row[0] for row in rows if row[-1] == "chosen"] == [record["backend"]]
        assert ("cost ms" in lines[1]) is (policy == "warm")


def test_explain_table_when_no_backend_is_left() -> None:
    with Fleet() as fleet:
        fleet.add("a").draining = True
        record = explain(fleet.router, fleet.prepare(body()), fleet.now_s)
        assert written(explain_table, record)[0].startswith("no backend by warm (none left), model m")


def test_names_with_brackets_are_no_markup() -> None:
    hostile = json.loads(json.dumps(STATUS))
    hostile["backends"][0]["models"] = ["[bold]m[/bold]", "[/x]"]
    assert "[bold]m[/bold],[/x]" in "\n".join(written(status_table, hostile))
    with Fleet() as fleet:
        fleet.add("a", ("[/m]",))
        request = json.dumps({"model": "[/m]", "messages": []}).encode()
        record = explain(fleet.router, fleet.prepare(request), fleet.now_s)
        assert "model [/m]" in written(explain_table, record)[0]


@pytest.mark.parametrize(
    ("reasons", "empty", "shown"),
    [
        ([], False, "up"),
        (["admin"], False, "up, draining (admin)"),
        (["admin", "config"], True, "up, drained (admin+config)"),
    ],
)
def test_status_table_says_who_rests(reasons: list[str], empty: bool, shown: str) -> None:
    backends = [{**STATUS["backends"][0], "draining": reasons, "empty": empty}]
    assert f"  {shown}  " in written(status_table, {**STATUS, "backends": backends})[2]
