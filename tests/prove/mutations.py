"""Breaks each promise on purpose, in a copy, and sees the test that holds it fail. `make prove` runs this.

A mutation whose text is not found any more is an error too: the code has moved, and the proof must follow it.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("deploy", "labsite", "sessions_app", "templates", "tests", "manage.py", "pyproject.toml")


@dataclass(frozen=True)
class Mutation:
    name: str
    file: str
    old: str
    new: str
    test: str  # of the tests that fail, the one that names the promise


MUTATIONS = (
    Mutation(
        "mark `expired` before deleting",
        "sessions_app/closing.py",
        "    session.attempt(act.now)\n    try:\n",
        "    session.attempt(act.now)\n    session.finish(act.now, run=act.run)\n    try:\n",
        "tests/test_sweep.py::test_row_is_closed_only_after_every_delete_was_accepted",
    ),
    Mutation(
        "drop the environment from the orphan rule",
        "sessions_app/labels.py",
        "    return labels.get(MANAGED_BY) == MANAGER and labels.get(ENVIRONMENT) == environment\n",
        "    return labels.get(MANAGED_BY) == MANAGER\n",
        "tests/test_sweep.py::test_only_our_own_orphan_goes",
    ),
    Mutation(
        "treat a failed listing as empty",
        "sessions_app/reaper.py",
        "            except (NoAnswer, Refused) as error:\n",
        "            except (NoAnswer, Refused) as error:\n                known[namespace] = []\n",
        "tests/test_sweep.py::test_failed_listing_changes_no_row_and_expired_sessions_are_closed",
    ),
    Mutation(
        "drop the re-read before an orphan's delete",
        "sessions_app/reaper.py",
        "        if session and LabSession.objects.ours().live().filter(pk=session).exists():\n",
        "        if session is False:\n",
        "tests/test_sweep.py::test_machine_whose_row_appears_between_listing_and_delete_lives",
    ),
    Mutation(
        "let one exception end a direction",
        "sessions_app/reaper.py",
        "            self.failed(direction, subject, error, session)\n",
        "            raise error\n",
        "tests/test_sweep.py::test_six_expired_and_the_first_always_fails",
    ),
    Mutation(
        "drop the uid precondition",
        "sessions_app/cluster.py",
        '            options["preconditions"] = {"uid": uid}\n',
        "            pass\n",
        "tests/test_cluster.py::test_delete_with_a_uid_takes_only_that_one",
    ),
    Mutation(
        "use two different clocks for page and reaper: the page's is the web server's",
        "sessions_app/views/sessions.py",
        "    row, now = _own(request, session), database_now()\n    return JsonResponse(",
        "    import datetime as d\n    row, now = _own(request, session), d.datetime.now(d.UTC)\n"
        "    return JsonResponse(",
        "tests/test_clock.py::test_web_server_whose_clock_is_hours_off_counts_right",
    ),
    Mutation(
        "use two different clocks for page and reaper: the reaper's is the worker's",
        "sessions_app/tasks.py",
        "    now = database_now()\n",
        "    import datetime\n    now = datetime.datetime.now(datetime.UTC)\n",
        "tests/test_clock.py::test_worker_whose_clock_is_hours_off_ends_nobody_early",
    ),
    Mutation(
        "drop the compare-and-set in extending",
        "sessions_app/models/sessions.py",
        "                .filter(pk=self.pk, status__in=OPEN, expires_at__gt=now, expires_at__lt=end)\n",
        "                .filter(pk=self.pk)\n",
        "tests/test_sweep.py::test_claim_that_came_first_refuses_the_extension",
    ),
    Mutation(
        "ignore the marker",
        "sessions_app/reaper.py",
        "            if objection := marker.objection(found):\n",
        '            if objection := "":\n',
        "tests/test_marker.py::test_marker_of_another_installation_refuses",
    ),
    Mutation(
        "close a foreign machine's Secret",
        "sessions_app/closing.py",
        "        if not recorded:\n            text =",
        "        if found is None:\n            text =",
        "tests/test_sweep.py::test_somebody_elses_machine_under_our_name_stops_the_closing_before_its_secret",
    ),
    Mutation(
        "let the fuse take all the time there is",
        "sessions_app/fuse.py",
        "connect(budget=settings.LAB_SWEEP_BUDGET_SECONDS)",
        "connect()",
        "tests/test_fuse.py::test_silent_or_slow_cluster_ends_in_the_budget",
    ),
    Mutation(
        "forget what the pruned rows counted",
        "sessions_app/housekeeping.py",
        "        Tally.add(entry for entries in counting(rows) for entry in entries)\n",
        "",
        "tests/test_metrics.py::test_what_is_pruned_stays_counted",
    ),
    Mutation(
        "let two pruners take the same rows",
        "sessions_app/housekeeping.py",
        ".select_for_update(skip_locked=True)",
        "",
        "tests/test_housekeeping.py::test_three_pruners_at_once_count_each_row_once",
    ),
    Mutation(
        "alarm while the sweeps go well, and not when they do not",
        "deploy/kubernetes/components/monitoring/alerts.yaml",
        'labsite_last_success_age_seconds{namespace="NAMESPACE"}) > 180\n',
        'labsite_last_success_age_seconds{namespace="NAMESPACE"}) < 180\n',
        "tests/test_metrics.py::test_alert_fires_when_it_is_needed_and_only_then",
    ),
    Mutation(
        "guard nothing but Secrets at the API server",
        "deploy/kubernetes/cluster/admission.yaml",
        "      resources: [secrets, services, pods, configmaps]\n",
        "      resources: [secrets]\n",
        "tests/test_life_under_roles.py::test_api_server_denies_an_installation_what_is_not_its_own",
    ),
)


def failing_lines(mutation: Mutation, copy: Path) -> str:
    """Runs the named test in the copy, with the mutation in it. Its failures in short; empty when none."""
    file = copy / mutation.file
    text = file.read_text()
    if text.count(mutation.old) != 1:
        sys.exit(f"{mutation.name}: its place in {mutation.file} is not there any more, or is there twice")
    file.write_text(text.replace(mutation.old, mutation.new))
    try:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=no", mutation.test]
        done = subprocess.run(command, cwd=copy, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": "."})
    finally:
        file.write_text(text)
    if done.returncode not in (0, 1):
        sys.exit(f"{mutation.name}: the test did not run\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return "\n".join(line for line in done.stdout.splitlines() if line.startswith("FAILED"))


def main() -> None:
    survived = []
    with tempfile.TemporaryDirectory(prefix="labsite-mutations-") as directory:
        for name in COPIED:
            source = ROOT / name
            (shutil.copytree if source.is_dir() else shutil.copy2)(source, Path(directory) / name)
        for mutation in MUTATIONS:
            failed = failing_lines(mutation, Path(directory))
            print(f"{'caught  ' if failed else 'SURVIVED'} {mutation.name}: {mutation.test}", flush=True)  # noqa: T201
            survived += [] if failed else [mutation.name]
    print(f"{len(MUTATIONS) - len(survived)} of {len(MUTATIONS)} mutations caught")  # noqa: T201
    sys.exit(bool(survived))


if __name__ == "__main__":
    main()
