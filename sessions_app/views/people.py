"""What a student says about themself: so far the SSH key."""

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from sessions_app.forms import StudentKeyForm
from sessions_app.models import StudentKey
from sessions_app.views.access import StudentRequest, signed_in


@require_http_methods(["GET", "HEAD", "POST"])
@signed_in
def key(request: StudentRequest) -> HttpResponse:
    present = StudentKey.objects.filter(student=request.user).first()
    form = StudentKeyForm(request.POST or None, initial={"public_key": present.public_key if present else ""})
    if form.is_valid():
        # Not the form's own save: two tabs at once are one key, not an error.
        StudentKey.objects.update_or_create(student=request.user, defaults=form.cleaned_data)
        messages.success(request, _("Saved. Machines that you open from now on let this key in."))
        return redirect("key")
    return render(request, "key.html", {"form": form, "present": present})
