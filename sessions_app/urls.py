from django.contrib.auth.views import LoginView, LogoutView
from django.urls import path
from django.views.i18n import set_language

from sessions_app.forms import LoginForm
from sessions_app.views import grading, labs, passwords, people, sessions

login = LoginView.as_view(template_name="login.html", authentication_form=LoginForm, redirect_authenticated_user=True)

urlpatterns = [
    path("", labs.labs, name="labs"),
    path("labs/live/", labs.live, name="labs-live"),
    path("labs/<int:lab>/open/", labs.open_lab, name="open"),
    path("sessions/", sessions.history, name="history"),
    path("sessions/<uuid:session>/", sessions.page, name="session"),
    path("sessions/<uuid:session>/live/", sessions.live, name="session-live"),
    path("sessions/<uuid:session>/extend/", sessions.extend, name="extend"),
    path("sessions/<uuid:session>/end/", sessions.end, name="end"),
    path("key/", people.key, name="key"),
    path("grading/", grading.report, name="grading"),
    path("language/", set_language, name="language"),
    path("login/", login, name="login"),
    path("password/", passwords.OwnPassword.as_view(), name="password"),
    path("logout/", LogoutView.as_view(), name="logout"),
]
