"""`make messages`: the catalogues of every language, brought in line with the texts in the sources, and compiled.

Without xgettext, so that the test which asks the same question (tests/test_messages.py) runs everywhere.
"""

import io
import os
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from babel.messages import Catalog
from babel.messages.extract import DEFAULT_KEYWORDS, extract_python
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("labsite", "sessions_app", "templates")
LOCALES = ROOT / "sessions_app" / "locale"
LANGUAGES = ("ja", "ko", "zh_Hans")

CREATED = datetime(2026, 11, 29, tzinfo=UTC)  # of the first one: a date that moves would change the files each time

LAZY = {f"{name}_lazy": DEFAULT_KEYWORDS[name] for name in ("gettext", "ngettext", "pgettext", "npgettext")}
KEYWORDS = {**DEFAULT_KEYWORDS, **LAZY, "gettext_noop": None}
CALL = re.compile(r"""\b(?:_|n?p?gettext)\((?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^()'"])*\)""")


def main() -> None:
    template = collected()
    for language in LANGUAGES:
        catalog = catalogue(language)
        catalog.update(template, no_fuzzy_matching=True)
        save(catalog, language)
        missing = untranslated(catalog)
        sys.stdout.write(f"{language}: {len(catalog)} texts, {len(missing)} without a translation\n")
        sys.stdout.writelines(f"  {text!r}\n" for text in missing)


def collected() -> Catalog:
    """Every text in the sources that is marked for translation."""
    template = Catalog(fuzzy=False)
    for path in sorted(path for source in SOURCES for path in (ROOT / source).rglob("*")):
        if path.suffix in (".py", ".html") and "migrations" not in path.parts:
            code = path.read_text() if path.suffix == ".py" else _calls(path)
            name = str(path.relative_to(ROOT))
            for _, function, message, comments in extract_python(
                io.BytesIO(code.encode()), KEYWORDS, ("Translators:",), {}
            ):
                _add(template, name, function, message, comments)  # type: ignore[arg-type]  # its stub is extract's
    return template


def catalogue(language: str) -> Catalog:
    path = _folder(language) / "django.po"
    if not path.exists():
        return Catalog(locale=language, fuzzy=False)
    with path.open("rb") as file:
        return read_po(file, locale=language)


def save(catalog: Catalog, language: str) -> None:
    folder = _folder(language)
    folder.mkdir(parents=True, exist_ok=True)
    catalog.header_comment = "# The site's texts. `make messages` keeps this file in line with the sources."
    catalog.project, catalog.version, catalog.msgid_bugs_address = "Labsite", "1", "none"
    catalog.last_translator = catalog.language_team = "Labsite"
    catalog.creation_date = catalog.revision_date = CREATED
    catalog.fuzzy = False
    with (folder / "django.po").open("wb") as file:
        write_po(file, catalog, width=120, include_lineno=False, ignore_obsolete=True, sort_output=True)
    with (folder / "django.mo").open("wb") as file:
        write_mo(file, catalog)


def untranslated(catalog: Catalog) -> list[str]:
    return [str(message.id) for message in catalog if message.id and not _whole(message.string)]


def _whole(string: str | tuple[str, ...] | list[str] | None) -> bool:
    return all(string) if isinstance(string, tuple | list) else bool(string)


def _folder(language: str) -> Path:
    return LOCALES / language / "LC_MESSAGES"


def _calls(template: Path) -> str:
    """A template as Python: the calls that Django makes of its tags, each on its own line."""
    from django.utils.translation import templatize

    return "\n".join(_found(templatize(template.read_text(), origin=str(template))))


def _found(code: str) -> Iterator[str]:
    for call in CALL.finditer(re.sub(r"\bu(?=['\"])", "", code)):
        yield call[0]


def _add(template: Catalog, name: str, function: str, message: Any, comments: list[str]) -> None:
    """As gettext reads the arguments of each function: context, singular, plural."""
    parts = list(message) if isinstance(message, tuple | list) else [message]
    context = parts.pop(0) if "pgettext" in function else None
    texts = tuple(parts[: 2 if function.startswith("n") else 1])
    if all(isinstance(text, str) and text for text in texts):
        identity = texts if len(texts) > 1 else texts[0]
        template.add(identity, locations=[(name, 0)], context=context, auto_comments=comments)


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "labsite.settings")
    main()
