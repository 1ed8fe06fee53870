"""The little markup that staff may use in a lab's instructions: paragraphs, `code`, and blocks of commands."""

import re

from django import template
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

register = template.Library()

COMMAND = re.compile(r"^(?: {4}|\t|\$ )")
BETWEEN_BACKTICKS = re.compile(r"`([^`\n]+)`")


@register.filter
def instructions(text: str) -> SafeString:
    """Blank lines part paragraphs. One whose lines are all indented by four spaces, or begin with `$ `, is commands."""
    paragraphs = re.split(r"\n[ \t]*\n", text.replace("\r\n", "\n").strip("\n"))
    return format_html_join("\n", "{}", ((_paragraph(lines.split("\n")),) for lines in paragraphs if lines.strip()))


def _paragraph(lines: list[str]) -> SafeString:
    if all(COMMAND.match(line) for line in lines):
        return format_html("<pre><code>{}</code></pre>", "\n".join(COMMAND.sub("", line) for line in lines))
    return format_html("<p>{}</p>", format_html_join(mark_safe("<br>"), "{}", ((_line(line),) for line in lines)))


def _line(line: str) -> SafeString:
    parts = enumerate(BETWEEN_BACKTICKS.split(line))  # text, code, text, code, …
    return format_html_join(
        "", "{}", ((format_html("<code>{}</code>", part) if odd % 2 else part,) for odd, part in parts)
    )
