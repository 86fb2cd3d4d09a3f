"""The first key of a Corral that requires keys, by the commands that it prints."""

import subprocess
from pathlib import Path

import pytest

from tests.support.certificates import Authority
from tests.support.rpc import CAPITAL, PARIS
from tests.support.services import corral_up

pytestmark = pytest.mark.e2e


def test_the_printed_commands_run_with_tls_and_other_ports(tmp_path: Path) -> None:
    """Of all three services: the first key is created, and answers come over HTTPS and gRPC."""
    authority = Authority()
    (tmp_path / "ca.crt").write_bytes(authority.certificate)
    certificate, key = map(str, authority.issue("localhost").write(tmp_path, "tls"))
    tls = {"tls.certificate_file": certificate, "tls.key_file": key}
    client = {"ca_file": str(tmp_path / "ca.crt")}
    to_inference, to_control = {"inference_tls": client}, {"control_tls": client}
    settings = {
        "inference": tls | to_control,
        "control": tls | to_inference,
        "gateway": tls | to_control | to_inference,
    }
    with corral_up(tmp_path, "--require-keys", **settings) as corral:
        printed = [line.text.strip() for line in corral.program.stdout]
        (create,) = (line.removeprefix("keys").strip() for line in printed if "keys create" in line)
        chat, curl = (
            next(line for line in printed if word in line and line != create)
            for word in (" chat", "curl ")
        )
        script = f"""set -e
            export CORRAL_API_KEY=$({create} --name me | grep -o 'sk-corral-[^ ]*' | head -1)
            {curl} --silent --show-error
            echo '{CAPITAL}' | {chat} --temperature 0"""
        done = subprocess.run(
            ["bash", "-c", script], capture_output=True, text=True, timeout=100, cwd=tmp_path
        )

    assert done.returncode == 0, done.stderr
    assert done.stdout.count(PARIS) == 2
