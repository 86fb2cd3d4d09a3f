"""Renders the alert rules of monitoring/ as an object for the Prometheus operator."""

from pathlib import Path
from textwrap import indent
from typing import Final

PATH: Final = "deploy/kubernetes/components/monitoring/prometheusrule.yaml"
_RULES: Final = Path(__file__).resolve().parent.parent / "monitoring/prometheus/alerts.yml"
_HEAD: Final = """# Generated from monitoring/prometheus/alerts.yml by `make docs`.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: corral
spec:
"""


def render() -> str:
    """The manifest."""
    rules = _RULES.read_text(encoding="utf-8")
    return _HEAD + indent(rules[rules.index("groups:") :], "  ")
