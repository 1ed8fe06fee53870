"""What still takes machines back when web, workers and database are all down, or all wrong.

KubeVirt knows no deadline of its own, so each machine carries the moment past which it may not live: its session's
latest end and a margin, as both were at opening. Neither rows nor settings nor our own clock are asked.
"""

from dataclasses import dataclass, field
from datetime import datetime

import structlog
from django.conf import settings
from django.utils.translation import gettext as _

from sessions_app import labels, manifests
from sessions_app.cluster import Cluster, ClusterError, Misconfigured, NoAnswer, Thing, connect

log = structlog.get_logger(__name__)

EVENT_REASON = "RemovedByFuse"


@dataclass
class Burn:
    """What one run of the fuse saw and did, by the machines' names."""

    now: datetime
    due: list[Thing] = field(default_factory=list)
    living: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    damaged: dict[str, str] = field(default_factory=dict)  # and what the annotation says
    failed: dict[str, str] = field(default_factory=dict)  # and the error

    @property
    def whole(self) -> bool:
        return not (self.damaged or self.failed)


def burn(*, dry_run: bool = False) -> Burn:
    """Deletes each machine of our environment whose moment has passed by the API server's clock.

    1. One complete listing; its answer says what time it is. Raises ClusterError when there is none.
    2. Who is leaving is left alone; whose moment cannot be read is reported, and never deleted by guess.
    3. Who is due is deleted, with its Secret; whatever goes wrong with one is recorded and passed over.
    4. Last, each deletion is told in the cluster: that may take long or fail without holding up another one.
    """
    cluster = connect(budget=settings.LAB_SWEEP_BUDGET_SECONDS)
    listed = _ours(cluster)
    if cluster.server_time is None:
        raise NoAnswer(_("The API server does not say what time it is."))
    done = Burn(cluster.server_time)
    for machine in listed:
        _sort(machine, done)
    if not dry_run:
        for machine in done.due:
            _remove(cluster, machine, done)
        for machine in done.due:
            if machine.name in done.removed:
                _tell(cluster, machine, done.now)
    log.info("fuse", living=done.living, removed=done.removed, damaged=done.damaged, failed=done.failed)
    return done


def _ours(cluster: Cluster) -> list[Thing]:
    environment = settings.LABSITE_ENVIRONMENT
    if not labels.is_environment(environment):
        raise Misconfigured(_("LABSITE_ENVIRONMENT is not set to a usable name."))
    listed = cluster.listing("VirtualMachine", settings.LAB_VM_NAMESPACE, selector=labels.selector(environment))
    return [machine for machine in listed if labels.is_ours(machine.labels, environment) and not machine.leaving]


def _sort(machine: Thing, done: Burn) -> None:
    said = machine.annotations.get(labels.REMOVE_AFTER, "")
    try:
        last_moment = manifests.read_moment(said)
    except ValueError:
        log.warning("fuse cannot read", machine=machine.name, uid=machine.uid, remove_after=said)
        done.damaged[machine.name] = said
        return
    if done.now > last_moment:
        done.due.append(machine)
    else:
        done.living.append(machine.name)


def _remove(cluster: Cluster, machine: Thing, done: Burn) -> None:
    """The machine and then its Secret, as every closing does. On record before it is asked for, its answer after."""
    said = machine.annotations[labels.REMOVE_AFTER]
    record = log.bind(machine=machine.name, namespace=machine.namespace, uid=machine.uid, remove_after=said)
    record.warning("fuse deletes", now=manifests.moment(done.now))
    try:
        if cluster.delete("VirtualMachine", machine.namespace, machine.name, machine.uid):
            done.removed.append(machine.name)
            if labels.is_machine_name(machine.name):  # not another's, which only bears our labels
                cluster.delete("Secret", machine.namespace, labels.secret_name(machine.name), None)
    except ClusterError as error:
        record.warning("fuse failed", error=str(error))
        done.failed[machine.name] = str(error)
    else:
        record.warning("fuse deleted", accepted=machine.name in done.removed)


def _tell(cluster: Cluster, machine: Thing, now: datetime) -> None:
    said = machine.annotations[labels.REMOVE_AFTER]
    message = f"Deleted by Labsite's fuse: its last moment was {said}, and nothing else had removed it by then."
    event = manifests.machine_event(machine.namespace, machine.name, machine.uid, EVENT_REASON, message, now)
    try:
        cluster.create(event)
    except ClusterError as error:
        log.warning("fuse's Event was not taken", machine=machine.name, error=str(error))
