"""The sandbox answers as a real API server and a real virt-controller did.

The scripts and the answers beside them were recorded on real ones and stand here unchanged.
"""

import os
import subprocess
import sys
from pathlib import Path

from deploy.sandbox import Sandbox

SCRIPTS = Path(__file__).parent / "conformance"


def start(script: str, server: Sandbox) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, SCRIPTS / script, "--server", server.url],
        env={**os.environ, "CONFORMANCE_TOKEN": "conformance"},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_conformance_with_the_real_servers() -> None:
    # The API server's answers were recorded where no virt-controller ran, so it must not be quick to act there.
    with (
        Sandbox(boot_seconds=0.1, shutdown_seconds=0.1, reaction_seconds=1.0) as api_server,
        Sandbox(boot_seconds=0.4, shutdown_seconds=0.4, reaction_seconds=0.05) as kubevirt,
    ):
        for server in (api_server, kubevirt):
            server.add_token("conformance")
        runs = start("apiserver_conformance.py", api_server), start("kubevirt_conformance.py", kubevirt)
        said = [run.communicate(timeout=120)[0] for run in runs]

    assert said == ["51 agree, 0 differ, 0 skipped\n", "10 agree, 0 differ\n"]
