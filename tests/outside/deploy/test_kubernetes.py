"""The Kubernetes manifests: rendered by kubectl, checked by the schemas of Kubernetes, read by the
settings code of the services that they start."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from click.testing import CliRunner

from corral_cli.__main__ import cli
from corral_cli.serve import SERVICES, settings_class
from svc_kit.settings.groups import load_settings
from tests.architecture.test_house_rules import ROOT

FOLDER = ROOT / "deploy/kubernetes"
OVERLAYS = ["base", *(f"overlays/{name}" for name in ("production", "gpu", "vllm", "llm-d"))]
OF_OPERATORS = {"PrometheusRule", "ScaledObject", "ServiceMonitor"}
"""Kinds that the schemas of Kubernetes do not have."""
SECRETS = {
    "corral-service-token": "service-token",
    "corral-database": "postgresql://corral:secret@db/corral",
    "corral-bucket": "secret",
}
"""The Secrets that docs/operate/kubernetes.md tells operators to create, with a value of each."""
MARGIN_S = 10

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl renders them")


@cache
def render(overlay: str) -> str:
    command = ["kubectl", "kustomize", str(FOLDER / overlay)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@cache
def manifests(overlay: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(render(overlay)))


def pods(overlay: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The component and the pod specification of each workload."""
    for manifest in manifests(overlay):
        spec = manifest.get("spec", {})
        if template := spec.get("jobTemplate", {}).get("spec", spec).get("template"):
            yield template["metadata"]["labels"]["app.kubernetes.io/component"], template["spec"]


def validate(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Check manifests against the schemas of Kubernetes; unknown fields are errors."""
    path = folder / "manifests.yaml"
    path.write_text(text)
    command = [str(Path(sys.executable).with_name("kubernetes-validate")), "--strict", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_manifests_have_the_schema_of_kubernetes(overlay: str, tmp_path: Path) -> None:
    """Only kinds of operators are unknown to it."""
    result = validate(render(overlay), tmp_path)

    unknown = re.findall(r"WARN .* find schema for kind (\w+)", result.stdout)
    assert result.returncode == 0, result.stdout + result.stderr
    assert set(unknown) == {manifest["kind"] for manifest in manifests(overlay)} & OF_OPERATORS
    assert result.stdout.count("WARN") == len(unknown)


def test_a_misspelt_field_is_found(tmp_path: Path) -> None:
    """The check above would not be worth much without this."""
    text = render("base").replace("readinessProbe:", "readynessProbe:", 1)

    assert validate(text, tmp_path).returncode != 0


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_services_accept_the_settings_of_their_pods(overlay: str, tmp_path: Path) -> None:
    """Every name in the ConfigMap and in the environment is a setting, and each value is valid."""
    found = dict(pods(overlay))
    for service in SERVICES:
        container = found[service]["containers"][0]
        assert container["args"] == ["serve", service, "--config", "/etc/corral/corral.toml"]
        settings = load(service, overlay, container, tmp_path)
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert settings.listen == f"0.0.0.0:{ports.get('grpc') or ports['http']}"
        assert settings.management_listen == f"0.0.0.0:{ports['management']}"
        assert settings.require_keys
        token = container["volumeMounts"][1]
        assert str(settings.service_token_file) == f"{token['mountPath']}/service-token"


def load(service: str, overlay: str, container: Mapping[str, Any], folder: Path) -> Any:
    (config,) = [m for m in manifests(overlay) if m["kind"] == "ConfigMap"]
    path = folder / "corral.toml"
    path.write_text(config["data"]["corral.toml"])
    environment = {
        variable["name"]: SECRETS[variable["valueFrom"]["secretKeyRef"]["name"]]
        for variable in container.get("env", [])
    }
    return load_settings(settings_class(service), toml=path, environment=environment)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_services_call_each_other_at_addresses_that_exist(overlay: str, tmp_path: Path) -> None:
    addresses = {
        f"{manifest['metadata']['name']}:{port['port']}"
        for manifest in manifests(overlay)
        if manifest["kind"] == "Service"
        for port in manifest["spec"]["ports"]
    }
    found = dict(pods(overlay))
    for service in SERVICES:
        settings = load(service, overlay, found[service]["containers"][0], tmp_path)
        targets = {getattr(settings, f"{other}_target", "") for other in SERVICES} - {""}
        assert targets
        assert {target.removeprefix("dns:///") for target in targets} <= addresses


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_several_inference_services_are_found_one_by_one(overlay: str, tmp_path: Path) -> None:
    """By a name that resolves to their pods, with connections that end for new ones."""
    found = dict(pods(overlay))
    headless = {
        manifest["metadata"]["name"]
        for manifest in manifests(overlay)
        if manifest["kind"] == "Service" and manifest["spec"].get("clusterIP") == "None"
    }
    targets = {
        load(service, overlay, found[service]["containers"][0], tmp_path).inference_target
        for service in ("gateway", "control")
    }
    inference = load("inference", overlay, found["inference"]["containers"][0], tmp_path)

    assert targets == ({f"dns:///{name}:50051" for name in headless} or {"corral-inference:50051"})
    assert (inference.server.max_connection_age_s is not None) is bool(headless)


@pytest.mark.parametrize("overlay", ["overlays/production", "overlays/gpu"])
def test_backups_are_of_what_control_uses(overlay: str, tmp_path: Path) -> None:
    """The same database, files and credentials, and a command that exists."""
    found = dict(pods(overlay))
    control, backup = found["control"]["containers"][0], found["backup"]["containers"][0]
    settings = load("control", overlay, backup, tmp_path)
    result = CliRunner().invoke(cli, [*backup["args"], "--help"])
    mounted = {each["mountPath"] for each in backup["volumeMounts"]}
    files = [
        {v["name"]: v for v in found[name]["volumes"]}["data"] for name in ("control", "backup")
    ]

    assert result.exit_code == 0, result.output
    assert {backup["args"][1], "/data", "/etc/corral"} <= mounted
    assert backup["env"] == control["env"]
    assert files[0] == files[1]
    assert settings.blobs_url


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pods_are_not_killed_while_they_drain(overlay: str, tmp_path: Path) -> None:
    """The grace period is longer than the delay and the drain after SIGTERM."""
    for service, pod in pods(overlay):
        if service in SERVICES:
            (container,) = pod["containers"]
            settings = load(service, overlay, container, tmp_path)
            server = getattr(settings, "server", settings)
            assert server.drain_delay_s >= 10  # kube-proxy and ingresses need a while
            needed_s = server.drain_delay_s + server.drain_grace_s + MARGIN_S
            assert pod["terminationGracePeriodSeconds"] >= needed_s, service


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pods_have_few_rights(overlay: str) -> None:
    """The Pod Security Standard `restricted`, and a root that cannot be written."""
    for _, pod in pods(overlay):
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False  # CORRAL_GATEWAY_PORT would be an unknown setting
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["limits"]["memory"]


def test_services_have_limits_of_processors() -> None:
    """From which the inference service takes the number of its threads."""
    found = dict(pods("base"))
    limits = {name: found[name]["containers"][0]["resources"]["limits"] for name in SERVICES}

    assert {name: each["cpu"] for name, each in limits.items()} == {
        "gateway": "2",
        "control": "2",
        "inference": "4",
    }


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_services_reach_issuers_and_collectors(overlay: str) -> None:
    """Policies with rules of outgoing traffic let out JWKS (443) and OTLP (4317), to any host."""
    anywhere: dict[str, set[int]] = {}
    for policy in [m["spec"] for m in manifests(overlay) if m["kind"] == "NetworkPolicy"]:
        component = policy["podSelector"].get("matchLabels", {}).get("app.kubernetes.io/component")
        rules = [rule for rule in policy.get("egress", ()) if "to" not in rule]
        for rule in rules:
            anywhere.setdefault(component, set()).update(port["port"] for port in rule["ports"])

    assert anywhere == {"gateway": {53, 443, 4317}, "inference": {53, 443, 4317}}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_secrets_are_named_and_never_contained(overlay: str) -> None:
    """Those of the documentation, and no others."""
    names = {
        volume["secret"]["secretName"]
        for _, pod in pods(overlay)
        for volume in pod["volumes"]
        if "secret" in volume
    } | {
        variable["valueFrom"]["secretKeyRef"]["name"]
        for _, pod in pods(overlay)
        for variable in pod["containers"][0].get("env", [])
    }

    assert names <= SECRETS.keys()
    assert all(manifest["kind"] != "Secret" for manifest in manifests(overlay))
    page = (ROOT / "docs/operate/kubernetes.md").read_text()
    assert all(f"create secret generic {name} " in page for name in names)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_workload_is_admitted_by_a_network_policy(overlay: str) -> None:
    """All other traffic into the namespace is refused."""
    policies = [m["spec"] for m in manifests(overlay) if m["kind"] == "NetworkPolicy"]
    selected = {
        label
        for policy in policies
        for label in [
            policy["podSelector"].get("matchLabels", {}).get("app.kubernetes.io/component"),
            *[
                value
                for expression in policy["podSelector"].get("matchExpressions", [])
                for value in expression["values"]
            ],
        ]
    }

    assert {component for component, _ in pods(overlay)} <= selected


def test_prometheus_knows_all_services_as_the_job_of_the_alerts() -> None:
    """The Prometheus operator names a job after the label `jobLabel` of the scraped Service."""
    found = manifests("overlays/production")
    (monitor,) = [m["spec"] for m in found if m["kind"] == "ServiceMonitor"]
    wanted = monitor["selector"]["matchLabels"].items()
    labels = [m["metadata"].get("labels", {}) for m in found if m["kind"] == "Service"]
    scraped = [each for each in labels if wanted <= each.items()]
    (rules,) = [m["spec"] for m in found if m["kind"] == "PrometheusRule"]

    assert len(scraped) == len(SERVICES)
    assert {each[monitor["jobLabel"]] for each in scraped} == {"corral"}
    assert rules == yaml.safe_load((ROOT / "monitoring/prometheus/alerts.yml").read_text())
    assert 'up{job="corral"}' in str(rules)


def test_the_router_of_llm_d_finds_what_inference_pods_serve(tmp_path: Path) -> None:
    """Its values, of a chart, name the labels, ports and protocol of the pods."""
    overlay = "overlays/llm-d"
    values = yaml.safe_load((FOLDER / overlay / "router-values.yaml").read_text())["router"]
    servers, plugins = values["modelServers"], values["epp"]["pluginsCustomConfig"]["corral.yaml"]
    (workload,) = [m for m in manifests(overlay) if m["kind"] == "StatefulSet"]
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    settings = load("inference", overlay, container, tmp_path)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    named = {each["type"]: each for each in yaml.safe_load(plugins)["plugins"]}

    labels = workload["spec"]["template"]["metadata"]["labels"]
    assert servers["matchLabels"].items() <= labels.items()
    assert servers["targetPorts"] == [{"number": ports["grpc"]}]
    assert named["metrics-data-source"]["parameters"]["port"] == ports["management"]
    assert settings.vllm_engine.enabled
    assert settings.server.vllm_metric_names


def test_inference_pods_may_ask_the_engines_of_their_settings(tmp_path: Path) -> None:
    overlay = "overlays/vllm"
    container = dict(pods(overlay))["inference"]["containers"][0]
    settings = load("inference", overlay, container, tmp_path)
    allowed = {
        (destination["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"], port)
        for policy in [m["spec"] for m in manifests(overlay) if m["kind"] == "NetworkPolicy"]
        for rule in policy.get("egress", ())
        for destination in rule.get("to", ())
        if "namespaceSelector" in destination
        for port in [each["port"] for each in rule["ports"]]
    }
    urls = [urlsplit(url) for each in settings.upstreams.values() for url in each.urls]

    assert {((url.hostname or "").partition(".")[2], url.port) for url in urls} == allowed
