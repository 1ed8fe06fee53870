"""The texts in every language: all of them, none of them stale, and compiled. By `make messages`' own extraction."""

import io
import re

import pytest
from babel.messages import Catalog
from babel.messages.mofile import read_mo, write_mo
from django.conf import settings
from django.utils import translation

from deploy.messages import LANGUAGES, LOCALES, catalogue, collected, untranslated

PLACEHOLDER = re.compile(r"%\(\w+\)[.\d]*[a-z]|%%|</?[a-z]+>|`[^`]+`")


@pytest.fixture(scope="module")
def sources() -> Catalog:
    return collected()


def texts(catalog: Catalog) -> set[object]:
    return {(message.context, message.id) for message in catalog if message.id}


@pytest.mark.parametrize("language", LANGUAGES)
def test_catalogue_holds_the_texts_of_the_sources_and_no_others(language: str, sources: Catalog) -> None:
    """It fails after a text was changed: run `make messages` and translate what it names."""
    held = texts(catalogue(language))

    assert len(held) > 300
    assert sorted(map(str, texts(sources) - held)) == []  # new in the sources
    assert sorted(map(str, held - texts(sources))) == []  # stale


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_text_is_translated(language: str) -> None:
    catalog = catalogue(language)

    assert untranslated(catalog) == []
    assert [message.id for message in catalog if message.id and message.fuzzy] == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_translations_keep_what_is_filled_in(language: str) -> None:
    """Each placeholder, tag and command of the text, and none that it has not; a singular may say “once”."""
    wrong = []
    for message in catalogue(language):
        if message.id:
            full = message.id[-1] if isinstance(message.id, tuple) else message.id
            strings = message.string if isinstance(message.string, tuple) else (message.string,)
            wrong += [text for text in strings if set(PLACEHOLDER.findall(text)) != set(PLACEHOLDER.findall(full))]

    assert wrong == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_compiled_catalogue_is_the_written_one(language: str) -> None:
    compiled = io.BytesIO()
    write_mo(compiled, catalogue(language))
    compiled.seek(0)

    with (LOCALES / language / "LC_MESSAGES" / "django.mo").open("rb") as file:
        shipped = read_mo(file)

    assert content(shipped) == content(read_mo(compiled))


def content(catalog: Catalog) -> dict[object, object]:
    return {(message.context, str(message.id)): message.string for message in catalog if message.id}


def test_every_language_of_the_site_has_a_catalogue() -> None:
    assert {translation.to_locale(code) for code, _ in settings.LANGUAGES} == {"en", *LANGUAGES}


def test_site_speaks_it() -> None:
    """Django finds what is shipped here, and Korean, Japanese and Chinese have one form for every number."""
    spoken = {}
    for code, _ in settings.LANGUAGES:
        with translation.override(code):
            spoken[code] = [translation.ngettext("%(count)d hour", "%(count)d hours", n) % {"count": n} for n in (1, 2)]

    assert spoken == {
        "en": ["1 hour", "2 hours"],
        "ko": ["1시간", "2시간"],
        "ja": ["1 時間", "2 時間"],
        "zh-hans": ["1 小时", "2 小时"],
    }
