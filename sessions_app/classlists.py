"""Class lists: a CSV file of people, read with patience, shown as what would change, imported whole or not at all."""

import csv
import hashlib
import io
import secrets
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, fields
from datetime import datetime

from django.contrib.auth.hashers import PBKDF2PasswordHasher, get_hasher, make_password
from django.contrib.auth.models import Group, User
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models.functions import Lower
from django.utils.translation import gettext as _

from sessions_app.models import FirstPassword

MOST_BYTES, MOST_LINES = 1_000_000, 1000
OWN_PASSWORDS = 40  # in one file: a slow hash for each, half a second, while somebody waits
COLUMNS = ("username", "name", "email", "group", "password")
LETTERS, LENGTH = "abcdefghijkmnpqrstuvwxyz23456789", 12  # 60 bits; nothing that is read as something else
QUICK_ITERATIONS = 1000  # of the hash of 60 random bits: nobody guesses them, and the first login hashes anew


class Unreadable(Exception):
    """Why nothing of the file can be used, in words."""


@dataclass(frozen=True)
class Entry:
    """One line of the file."""

    line: int
    username: str
    name: str = ""
    email: str = ""
    group: str = ""
    password: str = ""


@dataclass(frozen=True)
class Change:
    """What becomes of one person. `fields` are those of somebody known that get another value: name, old, new."""

    entry: Entry
    person: User | None
    fields: tuple[tuple[str, str, str], ...] = ()
    joins: bool = False

    @property
    def is_new(self) -> bool:
        return self.person is None

    @property
    def is_none(self) -> bool:
        return not (self.is_new or self.fields or self.joins)


@dataclass(frozen=True)
class Plan:
    changes: list[Change]
    problems: list[tuple[int, str]]  # line and what is wrong with it: with any, nothing is imported

    @property
    def digest(self) -> str:
        """The same for the same changes: what is done is what was shown."""
        shown = [(change.entry, change.is_new, change.fields, change.joins) for change in self.changes]
        return hashlib.sha256(repr((shown, self.problems)).encode()).hexdigest()

    def count(self, what: str) -> int:
        return sum(getattr(change, what) for change in self.changes)


# --- the file ---------------------------------------------------------------------------------------


def decode(data: bytes) -> str:
    """UTF-8, or UTF-16 as spreadsheets write it; never guessed further, since a wrong guess spoils names."""
    if len(data) > MOST_BYTES:
        raise Unreadable(_("The file is larger than %(most)d bytes.") % {"most": MOST_BYTES})
    try:
        if data.startswith((b"\xff\xfe", b"\xfe\xff")):
            return data.decode("utf-16")
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Unreadable(_("This is not UTF-8. In the spreadsheet, save it as “CSV UTF-8”.")) from None


def parse(text: str) -> tuple[list[Entry], list[tuple[int, str]]]:
    """The lines that can be read, and what is wrong with the others. Raises Unreadable."""
    first = text.partition("\n")[0]
    delimiter = max(",;\t", key=first.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    entries, problems = [], []
    try:
        names = _header(next(reader, []))
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            values = [cell.strip() for cell in cells]
            if len(values) > len(names):
                problems.append((reader.line_num, _("There are more cells than columns.")))
            else:
                entries.append(Entry(reader.line_num, **{"username": "", **dict(zip(names, values, strict=False))}))
    except csv.Error as error:
        raise Unreadable(_("Line %(line)d: %(error)s") % {"line": reader.line_num, "error": error}) from error
    if len(entries) > MOST_LINES:
        raise Unreadable(_("The file has more than %(most)d lines.") % {"most": MOST_LINES})
    return entries, problems


def _header(cells: list[str]) -> list[str]:
    names = [cell.strip().lower() for cell in cells]
    if "username" not in names:
        raise Unreadable(_("The first line must name the columns, “username” among them."))
    if unknown := sorted(set(names) - set(COLUMNS)):
        raise Unreadable(_("Unknown columns: %(names)s.") % {"names": ", ".join(unknown)})
    if len(set(names)) < len(names):
        raise Unreadable(_("A column is named twice."))
    return names


# --- the plan ---------------------------------------------------------------------------------------


def plan(text: str) -> Plan:
    """What would change; three queries for any number of lines. Raises Unreadable."""
    entries, problems = parse(text)
    lower = {entry.username.lower() for entry in entries}
    people = User.objects.annotate(lower=Lower("username")).filter(lower__in=lower).prefetch_related("groups")
    known = {person.username.lower(): person for person in people}
    forbidden = set(Group.objects.exclude(permissions=None).values_list("name", flat=True))
    times = Counter(entry.username.lower() for entry in entries)
    own = 0
    changes = []
    for entry in entries:
        person = known.get(entry.username.lower())
        own += bool(entry.password and person is None)
        objections = list(_objections(entry, person, forbidden, times[entry.username.lower()], own))
        problems += [(entry.line, objection) for objection in objections]
        if not objections:
            changes.append(_change(entry, person))
    return Plan(changes, sorted(problems))


def _objections(entry: Entry, person: User | None, forbidden: Collection[str], times: int, own: int) -> Iterator[str]:
    if any(unicodedata.category(letter) == "Cc" for cell in fields(entry)[1:] for letter in getattr(entry, cell.name)):
        yield _("There are control characters in it.")
        return
    if times > 1:
        yield _("“%(username)s” stands in the file more than once.") % {"username": entry.username}
    if person and person.username != entry.username:
        yield _("“%(username)s” is spelt “%(known)s” here.") % {"username": entry.username, "known": person.username}
    if person and (person.is_staff or person.is_superuser):
        yield _("“%(username)s” belongs to the staff, who are not changed by a list.") % {"username": entry.username}
    if entry.group in forbidden:
        yield _("The group “%(group)s” carries permissions and is no class.") % {"group": entry.group}
    yield from _invalid(entry, person)
    if entry.password and person is None and own > OWN_PASSWORDS:
        yield _("More than %(most)d new passwords stand in the file: leave them to the site.") % {"most": OWN_PASSWORDS}


def _invalid(entry: Entry, person: User | None) -> Iterator[str]:
    """What the models and the rules for passwords say."""
    user = User(username=entry.username, first_name=entry.name, email=entry.email)
    try:
        user.clean_fields(exclude=("password",))
        Group(name=entry.group or "-").clean_fields()
        if entry.password and person is None:
            validate_password(entry.password, user)
    except ValidationError as error:
        yield " ".join(error.messages)


def _change(entry: Entry, person: User | None) -> Change:
    """An empty cell changes nothing, and the password of somebody known is theirs."""
    if person is None:
        return Change(entry, None, joins=bool(entry.group))
    pairs = (("name", person.get_full_name(), entry.name), ("email", person.email, entry.email))
    changed = tuple(pair for pair in pairs if pair[2] and pair[1] != pair[2])
    joins = bool(entry.group) and entry.group not in {group.name for group in person.groups.all()}
    return Change(entry, person, changed, joins)


# --- the import -------------------------------------------------------------------------------------


def carry_out(plan: Plan, now: datetime) -> list[tuple[str, str]]:
    """All of it or nothing. The new people's names and initial passwords, to be shown once."""
    assert not plan.problems
    new = [change for change in plan.changes if change.is_new]
    passwords = {change.entry.username: change.entry.password or _random_password() for change in new}
    hashed = {change.entry.username: _hashed(change.entry, passwords) for change in new}  # slow: before the transaction
    with transaction.atomic():
        made = User.objects.bulk_create(_person(change.entry, hashed) for change in new)
        FirstPassword.objects.bulk_create(FirstPassword(person=person, since=now) for person in made)
        _change_the_known(plan.changes)
        _join(plan.changes, {person.username: person for person in made})
    return list(passwords.items())


def _person(entry: Entry, hashed: dict[str, str]) -> User:
    """The name is kept whole: where it would part, only its bearer knows."""
    return User(username=entry.username, first_name=entry.name, email=entry.email, password=hashed[entry.username])


def _change_the_known(changes: Iterable[Change]) -> None:
    people = []
    for change in changes:
        if change.person and change.fields:
            for name, _old, value in change.fields:
                if name == "name":
                    change.person.first_name, change.person.last_name = value, ""
                else:
                    change.person.email = value
            people.append(change.person)
    User.objects.bulk_update(people, ("first_name", "last_name", "email"), batch_size=200)


def _join(changes: Iterable[Change], made: dict[str, User]) -> None:
    joining = [(change.person or made[change.entry.username], change.entry.group) for change in changes if change.joins]
    groups = {name: Group.objects.get_or_create(name=name)[0] for name in sorted({name for _person, name in joining})}
    through = User.groups.through
    through.objects.bulk_create(
        (through(user_id=person.pk, group_id=groups[name].pk) for person, name in joining), ignore_conflicts=True
    )


def _hashed(entry: Entry, passwords: dict[str, str]) -> str:
    hasher = get_hasher()
    if entry.password or not isinstance(hasher, PBKDF2PasswordHasher):
        return make_password(passwords[entry.username])
    return hasher.encode(passwords[entry.username], hasher.salt(), iterations=QUICK_ITERATIONS)


def _random_password() -> str:
    return "".join(secrets.choice(LETTERS) for _ in range(LENGTH))
