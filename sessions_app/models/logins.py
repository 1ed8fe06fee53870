from django.conf import settings
from django.db import models
from django.utils.translation import gettext_lazy as _


class FirstPassword(models.Model):
    """Somebody whose password was made by another: it must be changed at the first login. The row goes when it is."""

    person = models.OneToOneField(
        settings.AUTH_USER_MODEL, primary_key=True, on_delete=models.CASCADE, related_name="first_password"
    )
    since = models.DateTimeField(_("since"))

    class Meta:
        verbose_name = _("first password")
        verbose_name_plural = _("first passwords")
        default_permissions = ()

    def __str__(self) -> str:
        return str(self.person)


class LoginTries(models.Model):
    """How often somebody was tried to be logged in from one address, in a window that begins with the first try.

    In the database, since web processes share nothing else.
    """

    username = models.CharField(_("username"), max_length=150)
    address = models.CharField(_("address"), max_length=64)
    since = models.DateTimeField(_("since"), db_index=True)
    count = models.PositiveIntegerField(_("times"), default=1)

    class Meta:
        verbose_name = _("login tries")
        verbose_name_plural = _("login tries")
        default_permissions = ()
        constraints = (models.UniqueConstraint(name="tries_of_one", fields=("username", "address")),)

    def __str__(self) -> str:
        return f"{self.username}, {self.address}"
