"""`python -m deploy.sandbox` runs a sandbox cluster; with a command it talks to one that runs.

python -m deploy.sandbox --port 8001 --namespace labsite-vms --golden labsite-vms/debian-12
python -m deploy.sandbox fault --verb delete --resource virtualmachines --status 500 --times 3
python -m deploy.sandbox power-off labsite-vms lab-0a1b2c3d4e5f
"""

from __future__ import annotations

import argparse
import gc
import json
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from .client import RemoteSandbox
from .cluster import Sandbox

# Commands whose arguments are the method's, one by one.
PLAIN: dict[str, tuple[str, ...]] = {
    "reset": (),
    "settle": (),
    "clear-faults": (),
    "forget-requests": (),
    "expire-continue-tokens": (),
    "power-off": ("namespace", "vm"),
    "crash": ("namespace", "vm"),
    "fail-boot": ("namespace", "vm"),
    "evict": ("namespace", "pod"),
    "complete": ("namespace", "pod"),
    "lose-node": ("node",),
    "restore-node": ("node",),
    "hold": ("kind", "namespace", "name"),
    "release": ("kind", "namespace", "name"),
}


def main() -> int:
    options = _parser().parse_args()
    try:
        return int(options.run(options))
    except (OSError, RuntimeError, ValueError) as error:
        print(f"sandbox: {error}", file=sys.stderr)  # noqa: T201
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m deploy.sandbox", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.set_defaults(run=_serve)
    parser.add_argument("--port", type=int, default=8001)
    for name, default, what in (
        ("boot", 1.0, "from a machine's creation until it is ready"),
        ("shutdown", 1.0, "that a guest takes to shut down"),
        ("reaction", 0.1, "until a controller acts on a change"),
    ):
        parser.add_argument(f"--{name}-seconds", type=float, default=default, help=f"{what} (default {default})")
    parser.add_argument(
        "--node", action="append", type=_node, metavar="NAME:CPU:MEMORY", help="default node-1:64:256Gi"
    )
    parser.add_argument("--namespace", action="append", default=[], help="a namespace to begin with")
    parser.add_argument(
        "--golden", action="append", default=[], metavar="NAMESPACE/NAME", help="a disk image to begin with"
    )
    parser.add_argument("--quota", action="append", default=[], type=_quota, metavar="NAMESPACE:RESOURCE=AMOUNT,…")
    commands = parser.add_subparsers(title="commands for a sandbox that runs", metavar="COMMAND")
    for name, arguments in PLAIN.items():
        _command(commands, name, _plain(name, arguments), *arguments)
    _command(commands, "requests", _requests)
    _command(
        commands, "advance", lambda options: RemoteSandbox(options.server).advance(float(options.seconds)), "seconds"
    )
    _fault_options(_command(commands, "fault", _fault))
    return parser


def _command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], Any], *arguments: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name)
    parser.add_argument("--server", default="http://127.0.0.1:8001")
    for argument in arguments:
        parser.add_argument(argument)
    parser.set_defaults(run=lambda options: run(options) or 0)
    return parser


def _fault_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--verb", default="*")
    parser.add_argument("--resource", default="*", help="plural: virtualmachines")
    for name in ("name", "namespace", "body"):
        parser.add_argument(f"--{name}")
    for name in ("status", "nth", "times"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--delay", type=float, help="seconds")
    parser.add_argument("--drop", choices=("before", "after"), help="close the connection before or after the effect")
    for name in ("silent", "half", "effect"):
        parser.add_argument(f"--{name}", action="store_true", default=None)


def _node(text: str) -> tuple[str, dict[str, str]]:
    name, cpu, memory = text.split(":")
    return name, {"cpu": cpu, "memory": memory}


def _quota(text: str) -> tuple[str, dict[str, str]]:
    namespace, _, amounts = text.partition(":")
    return namespace, dict(amount.split("=", 1) for amount in amounts.split(","))


def _serve(options: argparse.Namespace) -> int:
    gc.set_threshold(100_000, 50, 1000)  # 10,000 machines are millions of dicts without a cycle: half of the time
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: ended.set())
    cluster = Sandbox(
        boot_seconds=options.boot_seconds,
        shutdown_seconds=options.shutdown_seconds,
        reaction_seconds=options.reaction_seconds,
        port=options.port,
        nodes=dict(options.node) if options.node else None,
        namespaces=options.namespace,
    )
    with cluster:
        _prepare(cluster, options)
        print(f"sandbox cluster ready at {cluster.url}", flush=True)  # noqa: T201
        ended.wait()
    return 0


def _prepare(cluster: Sandbox, options: argparse.Namespace) -> None:
    for path in options.golden:
        namespace, _, name = path.partition("/")
        spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "10Gi"}}}
        cluster.create(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": name, "namespace": namespace},
                "spec": spec,
            }
        )
    for namespace, hard in options.quota:
        cluster.create(
            {
                "apiVersion": "v1",
                "kind": "ResourceQuota",
                "spec": {"hard": hard},
                "metadata": {"name": "labs", "namespace": namespace},
            }
        )


def _plain(name: str, arguments: tuple[str, ...]) -> Callable[[argparse.Namespace], Any]:
    def run(options: argparse.Namespace) -> None:
        values = [getattr(options, argument) for argument in arguments]
        getattr(RemoteSandbox(options.server), name.replace("-", "_"))(*values)

    return run


def _requests(options: argparse.Namespace) -> None:
    for request in RemoteSandbox(options.server).requests:
        shown = asdict(request)
        del shown["raw"]
        print(json.dumps(shown))  # noqa: T201


def _fault(options: argparse.Namespace) -> None:
    given = {key: found for key, found in vars(options).items() if found is not None and key in _FAULT_WORDS}
    print(json.dumps(RemoteSandbox(options.server).fail(options.verb, options.resource, **given)))  # noqa: T201


_FAULT_WORDS = ("name", "namespace", "body", "status", "nth", "times", "delay", "drop", "silent", "half", "effect")

if __name__ == "__main__":
    sys.exit(main())
