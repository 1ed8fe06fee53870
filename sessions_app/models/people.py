import base64
import binascii

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import models
from django.utils.translation import gettext_lazy as _

KEY_TYPES = (
    "ssh-ed25519",
    "ssh-rsa",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "sk-ssh-ed25519@openssh.com",
    "sk-ecdsa-sha2-nistp256@openssh.com",
)


def validate_ssh_public_key(text: str) -> None:
    """One line as `ssh-keygen` writes it. The key's own first field must repeat its type (RFC 4253, 6.6)."""
    if "PRIVATE KEY" in text:
        raise ValidationError(_("This is a private key. Keep it to yourself and paste the .pub file instead."))
    parts = text.split()
    if len(text.splitlines()) != 1 or len(parts) < 2 or parts[0] not in KEY_TYPES:
        raise ValidationError(_("Paste one line that begins with a key type such as ssh-ed25519."))
    try:
        blob = base64.b64decode(parts[1], validate=True)
    except (binascii.Error, ValueError):
        blob = b""
    kind = parts[0].encode()
    if not blob.startswith(len(kind).to_bytes(4, "big") + kind) or len(blob) < len(kind) + 36:
        raise ValidationError(_("The key is damaged or cut short. Copy the whole line of the .pub file."))


class StudentKey(models.Model):
    """The SSH public key that a student's machines let in."""

    student = models.OneToOneField(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="ssh_key", verbose_name=_("student")
    )
    public_key = models.TextField(
        _("SSH public key"),
        max_length=4096,
        validators=[validate_ssh_public_key],
        help_text=_("One line of your .pub file. Machines that you open from now on let it in."),
    )

    class Meta:
        verbose_name = _("SSH key")
        verbose_name_plural = _("SSH keys")

    def __str__(self) -> str:
        return str(self.student)
