from django.core.exceptions import ValidationError
from django.core.validators import MaxLengthValidator, MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from sessions_app import manifests


class Kind(models.TextChoices):
    POD = "pod", _("container (Pod)")
    VM = "vm", _("virtual machine")


validate_object_name = RegexValidator(
    r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$", _("Lower-case letters, digits, dots and hyphens only.")
)

# registry:port/path:tag@digest, as container runtimes parse it: a Pod with another never starts (InvalidImageName).
_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*|\[[0-9a-fA-F:]+\])"
_PATH = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
_DIGEST = r"(?:sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})"
validate_image = RegexValidator(
    rf"^(?:{_HOST}(?::[0-9]+)?/)?{_PATH}(?:/{_PATH})*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?(?:@{_DIGEST})?\Z",
    _("This is not the name of an image, such as registry.example.org/labs/shell:1.2"),
)

LONGEST_INSTRUCTIONS = 20_000  # characters
LARGEST_CLOUD_INIT = 16 * 1024  # bytes: what a cloud's user data usually may have; a Secret takes a megabyte
DEFAULT_CLOUD_INIT = """#cloud-config
hostname: {{ node }}
users:
  - name: student
    sudo: ALL=(ALL) NOPASSWD:ALL
    shell: /bin/bash
    ssh_authorized_keys:
      - "{{ ssh_public_key }}"
"""


class LabQuerySet(models.QuerySet["Lab"]):
    def published(self) -> "LabQuerySet":
        return self.filter(published=True)


class Lab(models.Model):
    """An exercise that staff publish. What closing needs of it is copied to the session when it opens."""

    title = models.CharField(_("title"), max_length=100, unique=True)
    summary = models.CharField(_("summary"), max_length=300, blank=True, help_text=_("What students read in the list."))
    published = models.BooleanField(_("published"), default=False, help_text=_("Students see and open it."))
    kind = models.CharField(_("kind"), max_length=3, choices=Kind)
    node_count = models.PositiveSmallIntegerField(
        _("nodes"),
        default=1,
        validators=[MinValueValidator(1), MaxValueValidator(5)],
        help_text=_("Machines of one session. A virtual machine takes one seat each."),
    )
    image = models.CharField(
        _("image"),
        max_length=300,
        blank=True,
        validators=[validate_image],
        help_text=_("A container image, or a containerDisk for machines."),
    )
    golden_pvc = models.CharField(
        _("golden PVC"),
        max_length=253,
        blank=True,
        validators=[validate_object_name],
        help_text=_("The master disk in the namespace of the machines. Never written to and never deleted."),
    )
    persistent_disk = models.BooleanField(
        _("disk of its own"),
        default=False,
        help_text=_("Each machine gets a copy of the golden PVC, which survives a restart and goes with the session."),
    )
    memory_mib = models.PositiveIntegerField(
        _("memory (MiB)"), default=4096, validators=[MinValueValidator(64), MaxValueValidator(65536)]
    )
    cores = models.PositiveSmallIntegerField(
        _("cores"), default=1, validators=[MinValueValidator(1), MaxValueValidator(16)]
    )
    instructions = models.TextField(
        _("instructions for students"),
        blank=True,
        validators=[MaxLengthValidator(LONGEST_INSTRUCTIONS)],
        help_text=_("Placeholders: %(names)s.") % {"names": manifests.shown(manifests.INSTRUCTION_NAMES)},
    )
    cloud_init = models.TextField(
        _("cloud-init template"),
        blank=True,
        default=DEFAULT_CLOUD_INIT,
        help_text=_("For virtual machines. Placeholders: %(names)s.")
        % {"names": manifests.shown(manifests.CLOUD_INIT_NAMES)},
    )

    objects = LabQuerySet.as_manager()

    class Meta:
        verbose_name = _("lab")
        verbose_name_plural = _("labs")
        ordering = ("title",)
        constraints = (
            models.CheckConstraint(name="lab_kind_known", condition=Q(kind__in=Kind.values)),
            models.CheckConstraint(name="lab_has_a_node", condition=Q(node_count__gte=1)),
            models.CheckConstraint(name="lab_pod_is_single", condition=Q(kind=Kind.VM) | Q(node_count=1)),
        )

    def __str__(self) -> str:
        return self.title

    @property
    def seats(self) -> int:
        """How many of the site's places for virtual machines one session takes."""
        return self.node_count if self.kind == Kind.VM else 0

    def clean(self) -> None:
        errors = self._disk_errors()
        if self.kind == Kind.POD and self.node_count != 1:
            errors["node_count"] = _("A container lab has one node.")
        try:
            self._check_cloud_init()
        except ValueError as error:
            errors["cloud_init"] = str(error)
        try:
            manifests.check_placeholders(self.instructions, manifests.INSTRUCTION_NAMES)
        except ValueError as error:
            errors["instructions"] = str(error)
        if errors:
            raise ValidationError(errors)

    def _check_cloud_init(self) -> None:
        """The template that a new lab's form begins with is nobody's text, and goes where it has no use."""
        if self.kind == Kind.POD:
            if self.cloud_init.split() == DEFAULT_CLOUD_INIT.split():  # a browser ends its lines otherwise
                self.cloud_init = ""
            if self.cloud_init:
                raise ValueError(_("A container lab has no cloud-init: leave the template empty."))
        elif len(self.cloud_init.encode()) > LARGEST_CLOUD_INIT:
            raise ValueError(_("A cloud-init template has at most 16 KiB."))
        else:
            manifests.check_cloud_init(self.cloud_init)

    def _disk_errors(self) -> dict[str, object]:
        if self.kind == Kind.POD:
            if not self.image:
                return {"image": _("A container lab needs an image.")}
            if self.golden_pvc or self.persistent_disk:
                return {"golden_pvc": _("A container lab has no disk: leave the golden PVC empty.")}
        elif bool(self.image) == bool(self.golden_pvc):
            return {"image": _("Name either an image or a golden PVC.")}
        elif self.persistent_disk and not self.golden_pvc:
            return {"persistent_disk": _("A disk of its own is a copy of a golden PVC: name one.")}
        return {}
