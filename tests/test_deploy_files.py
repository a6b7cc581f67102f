"""The files under configs/ fit the program that they start."""

from __future__ import annotations

import configparser
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from gateway.cli import cli
from gateway.config import load, loads

if TYPE_CHECKING:
    from gateway.config import Config

CONFIGS = Path(__file__).parents[1] / "configs"
KEY = "0123456789abcdef0123"


def documents(file: Path) -> list[dict[str, Any]]:
    return list(YAML(typ="safe", pure=True).load_all(file.read_text()))


def command_line(*arguments: str) -> None:
    """It names a command and options that there are."""
    result = CliRunner().invoke(cli, [*arguments, "--help"])
    assert result.exit_code == 0, result.output


def test_compose_starts_engines_and_a_gateway_that_finds_them() -> None:
    (compose,) = documents(CONFIGS / "compose.yaml")
    services = compose["services"]
    for service in services.values():
        command_line(*service["command"])
    config = load(CONFIGS / "compose" / "warmroute.yaml", {"WARMROUTE_KEY": KEY})
    engines = {name for name, service in services.items() if service["command"][0] == "engine"}
    assert {backend.url for backend in config.backends} == {f"http://{name}:8100" for name in engines}
    stops_s = int(services["gateway"]["stop_grace_period"].removesuffix("s"))
    assert stops_s > config.listen.drain_delay_s + config.listen.grace_s


@pytest.fixture
def in_kubernetes(tmp_path: Path) -> tuple[dict[str, dict[str, Any]], Config]:
    """The manifests by kind, and the config in their ConfigMap, with secrets as they would be mounted."""
    manifests = {document["kind"]: document for document in documents(CONFIGS / "kubernetes" / "warmroute.yaml")}
    for name in ("secret", "admin-token", "team-a"):
        (tmp_path / name).write_text(KEY)
    text = manifests["ConfigMap"]["data"]["warmroute.yaml"].replace("/run/secrets/warmroute", str(tmp_path))
    return manifests, loads(text)


def test_kubernetes_runs_it_by_a_config_that_is_good(in_kubernetes: tuple[dict[str, Any], Config]) -> None:
    manifests, config = in_kubernetes
    pod = manifests["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    command_line(*container["args"])
    assert container["args"][-1].startswith(container["volumeMounts"][0]["mountPath"])
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports["http"] == config.listen.port
    assert ports["admin"] == config.admin.port
    assert config.admin.metrics_bind == f"0.0.0.0:{ports['metrics']}"
    assert pod["terminationGracePeriodSeconds"] > config.listen.drain_delay_s + config.listen.grace_s
    unencrypted = {"listen.host", "admin.host"}
    assert {warning.path for warning in config.warnings} == unencrypted, "left to the mesh, as the README there says"


def test_kubernetes_allows_what_discovery_asks_for(in_kubernetes: tuple[dict[str, Any], Config]) -> None:
    manifests, config = in_kubernetes
    assert config.discovery[0].kind == "kubernetes"
    (rule,) = manifests["Role"]["rules"]
    assert (rule["apiGroups"], rule["resources"]) == (["discovery.k8s.io"], ["endpointslices"])
    assert set(rule["verbs"]) == {"list", "watch"}
    assert manifests["RoleBinding"]["subjects"][0]["name"] == manifests["ServiceAccount"]["metadata"]["name"]


def test_kubernetes_readme_makes_the_secrets_that_are_mounted() -> None:
    readme = (CONFIGS / "kubernetes" / "README.md").read_text()
    text = (CONFIGS / "kubernetes" / "warmroute.yaml").read_text()
    mounted = set(re.findall(r"/run/secrets/warmroute/([a-z-]+)", text))
    assert mounted == set(re.findall(r"--from-literal=([a-z-]+)=", readme))


def test_systemd_starts_reloads_and_stops_it() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(CONFIGS / "systemd" / "warmroute.service")
    service = unit["Service"]
    program, *arguments = service["ExecStart"].split()
    assert program.endswith("/warmroute")
    command_line(*arguments)
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"
    defaults = loads("backends: [{name: a, url: http://127.0.0.1:1}]").listen
    assert int(service["TimeoutStopSec"]) > defaults.drain_delay_s + defaults.grace_s


def test_the_image_has_what_the_config_may_ask_for() -> None:
    dockerfile = (CONFIGS.parent / "Dockerfile").read_text()
    assert '".[fast,kubernetes]"' in dockerfile
