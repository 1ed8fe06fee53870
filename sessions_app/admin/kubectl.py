"""The line that shows in a terminal what a page speaks of."""

import shlex

from django.conf import settings

from sessions_app import labels
from sessions_app.models import Kind, LabSession, ReapFailure

KINDS = {Kind.VM: "vm,vmi,pod,service,networkpolicy", Kind.POD: "pod"}


def of_session(session: LabSession) -> str:
    selector = f"{labels.SESSION}={session.pk}"
    return shlex.join(["kubectl", "-n", session.namespace, "get", KINDS[Kind(session.kind)], "-l", selector])


def of_failure(failure: ReapFailure) -> str | None:
    """A failure's subject is a session, an object, or a right that we lack."""
    if failure.session:
        return of_session(failure.session)
    kind, slash, name = failure.subject.partition("/")
    if not slash or not kind.isalpha():
        return None
    namespace = settings.LAB_POD_NAMESPACE if kind == "Pod" else settings.LAB_VM_NAMESPACE
    return shlex.join(["kubectl", "-n", namespace, "get", kind.lower(), name, "-o", "yaml"])
