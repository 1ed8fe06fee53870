from django import forms

from sessions_app.models import StudentKey


class StudentKeyForm(forms.ModelForm):  # type: ignore[type-arg]  # generic in its stubs only
    class Meta:
        model = StudentKey
        fields = ("public_key",)
        widgets = {
            "public_key": forms.Textarea(
                attrs={"rows": 5, "spellcheck": "false", "autocomplete": "off", "autocapitalize": "off"}
            )
        }
