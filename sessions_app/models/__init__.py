"""Rows: one-row logic is a model method, many-row logic a queryset method. Nothing here knows the cluster."""

from sessions_app.models.clock import DatabaseNow, database_now
from sessions_app.models.labs import Kind, Lab
from sessions_app.models.logins import FirstPassword, LoginTries
from sessions_app.models.pauses import Pause
from sessions_app.models.people import StudentKey
from sessions_app.models.runs import Deletion, Direction, Installation, ReapFailure, ReapRun, Trigger
from sessions_app.models.sessions import EndReason, LabSession, SessionEvent, Status
from sessions_app.models.tallies import Tally
from sessions_app.models.tokens import WrongTokens

__all__ = [
    "DatabaseNow",
    "Deletion",
    "Direction",
    "EndReason",
    "FirstPassword",
    "Installation",
    "Kind",
    "Lab",
    "LabSession",
    "LoginTries",
    "Pause",
    "ReapFailure",
    "ReapRun",
    "SessionEvent",
    "Status",
    "StudentKey",
    "Tally",
    "Trigger",
    "WrongTokens",
    "database_now",
]
