"""The dashboard and the alert rules in a real Prometheus that scrapes real services."""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import httpx
import pytest

from tests.support.debian_packages import ROOT
from tests.support.otlp import run_collector
from tests.support.prometheus import Prometheus, promtool, run_prometheus
from tests.support.services import MODEL, corral_up

pytestmark = pytest.mark.e2e

RULES: Final = ROOT / "monitoring" / "prometheus"
DASHBOARD: Final = json.loads((ROOT / "monitoring/grafana/corral.json").read_text("utf-8"))
EXPRESSIONS: Final = sorted(
    target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())
)
METRIC: Final = re.compile(r"\b(?:corral|process|vllm)_?[a-z_:]+\b(?=[\[{ )]|$)")
SILENT: Final = re.compile(
    "accepted|aborted|media|closed_connections|certificate|saved_prefix|archive|RESOURCE_EXHAUSTED"
    "|oldest_queued|corral_jobs{|preemptions|corral_limit|!=.200|> 0"
)
"""Expressions over what does not happen in the test. Their metrics exist all the same."""
TRACE: Final = f"{7:032x}"


@dataclass(frozen=True)
class Monitored:
    """A Prometheus that has scraped all services after some requests."""

    prometheus: Prometheus
    text: dict[str, str]
    """Of each service, in Prometheus' format."""


@pytest.fixture(scope="module")
def monitored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Monitored]:
    """Run Corral and Prometheus, send requests, and wait for two scrapes after them."""
    folder = tmp_path_factory.mktemp("corral")
    inference = {"server.vllm_metric_names": True}
    with (
        run_collector() as collector,
        corral_up(folder, "--otlp-endpoint", collector.url, inference=inference) as corral,
    ):
        line = corral.program.wait_for_line(r"metrics +(http.*)", stream="stdout")[1]
        urls = re.findall(r"http://(\S+)/metrics", line)
        with run_prometheus(
            tmp_path_factory.mktemp("prometheus"), urls, RULES / "prometheus.yml"
        ) as prometheus:
            prometheus.wait(lambda: num_scraped(prometheus, 'up{job="corral"} == 1') == len(urls))
            send_requests(corral.url)
            sent_at = time.time()
            prometheus.wait(lambda: all(when > sent_at for when in last_scrapes(prometheus)))
            second = time.time()
            prometheus.wait(lambda: all(when > second for when in last_scrapes(prometheus)))
            text = {url: httpx.get(f"http://{url}/metrics", trust_env=False).text for url in urls}
            yield Monitored(prometheus, text)


def send_requests(url: str) -> None:
    messages = [{"role": "user", "content": "Count to nine, please."}]
    body = {"model": MODEL, "messages": messages, "max_tokens": 12}
    traced = {"traceparent": f"00-{TRACE}-{1:016x}-01"}
    rules = [f"Rule {number} is to be kind to animals." for number in range(80)]
    with httpx.Client(base_url=url, trust_env=False, timeout=60) as client:
        for rules[9] in ("Rule 9 is to be quiet.", "Rule 9 is to talk."):  # it breaks a prefix
            told = [{"role": "system", "content": "\n".join(rules)}, *messages]
            assert client.post("/v1/chat/completions", json=body | {"messages": told}).is_success
        response = {"model": MODEL, "input": "Hi", "background": True, "max_output_tokens": 4}
        made = client.post("/v1/responses", json=response).json()
        while made["status"] in ("queued", "in_progress"):
            made = client.get(f"/v1/responses/{made['id']}").json()
        # Last, since a bucket keeps only the exemplar of its newest observation.
        for _ in range(3):
            client.post("/v1/chat/completions", json=body, headers=traced).raise_for_status()


def num_scraped(prometheus: Prometheus, query: str) -> int:
    return len(prometheus.get("query", query=query)["result"])


def last_scrapes(prometheus: Prometheus) -> list[float]:
    """The times of the last samples of the services."""
    result = prometheus.get("query", query="timestamp(corral_start_time_seconds)")["result"]
    return [float(each["value"][1]) for each in result]


def runnable(expression: str) -> str:
    """An expression with values for Grafana's variables."""
    return expression.replace("$__rate_interval", "1m").replace("$model", ".*")


def test_the_rules_and_the_configuration_are_valid() -> None:
    """For promtool, which also runs the rules' own tests."""
    promtool("check", "rules", "alerts.yml", folder=RULES)
    promtool("check", "config", "prometheus.yml", folder=RULES)
    promtool("test", "rules", "alerts_test.yml", folder=RULES)


def test_every_alert_has_a_test() -> None:
    rules, tests = ((RULES / name).read_text("utf-8") for name in ("alerts.yml", "alerts_test.yml"))
    alerts = re.findall(r"alert: (\w+)", rules)

    assert len(alerts) > 5
    assert [alert for alert in alerts if alert not in tests] == []


def test_every_metric_of_dashboard_and_rules_exists(monitored: Monitored) -> None:
    """In a scrape of the services, with or without samples."""
    families = set(re.findall(r"^# TYPE (\S+)", "\n".join(monitored.text.values()), re.MULTILINE))
    suffixes = ("", "_bucket", "_count", "_sum")
    exported = {family + suffix for family in families for suffix in suffixes}
    [group] = monitored.prometheus.get("rules")["groups"]
    rules = [rule["query"] for rule in group["rules"]]
    named = {name for text in [*EXPRESSIONS, *rules] for name in METRIC.findall(text)}

    assert len(named) > 40
    of_tls = {f"corral_tls_certificate_{name}" for name in ("expiry_timestamp_seconds", "refused")}
    assert named - exported - of_tls == set()


def test_every_panel_can_be_queried(monitored: Monitored) -> None:
    """And has values, if what it shows has happened."""
    results = {
        expression: monitored.prometheus.get("query", query=runnable(expression))["result"]
        for expression in EXPRESSIONS
    }

    empty = [expression for expression, result in results.items() if not result]
    assert [expression for expression in empty if not SILENT.search(expression)] == []


def test_no_alert_fires_on_a_healthy_installation(monitored: Monitored) -> None:
    """All rules are evaluated without errors."""
    [group] = monitored.prometheus.get("rules")["groups"]
    rules: list[dict[str, Any]] = group["rules"]

    assert {rule["health"] for rule in rules} == {"ok"}
    assert [rule["name"] for rule in rules if rule["state"] == "firing"] == []


def test_exemplars_lead_to_traces(monitored: Monitored) -> None:
    """Of HTTP requests, RPCs, and times to the first token."""
    now = time.time()
    for metric in (
        "corral_http_server_duration_seconds_bucket",
        "corral_rpc_server_duration_seconds_bucket",
        "corral_time_to_first_token_seconds_bucket",
        "corral_queue_seconds_bucket",
    ):
        found = monitored.prometheus.get(
            "query_exemplars", query=metric, start=str(now - 100), end=str(now)
        )
        ids = {each["labels"]["trace_id"] for series in found for each in series["exemplars"]}
        assert TRACE in ids, metric


def test_routers_find_what_they_read_of_a_model_server(monitored: Monitored) -> None:
    """Under vLLM's names, as the Gateway API Inference Extension expects them."""
    names = set(monitored.prometheus.get("label/__name__/values"))

    assert names >= {
        "vllm:num_requests_waiting",
        "vllm:num_requests_running",
        "vllm:kv_cache_usage_perc",
        "vllm:cache_config_info",
        "vllm:lora_requests_info",
    }


def test_metrics_follow_prometheus_conventions(monitored: Monitored) -> None:
    """As promtool's linter knows them."""
    for text in monitored.text.values():
        promtool("check", "metrics", text=re.sub(r"(?m)^.*vllm:.*\n", "", text))
