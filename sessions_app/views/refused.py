"""What people see of a refusal for which Django has no page."""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render


def page_for_wrong_method(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """Middleware, the last: who reloads what a form was sent to meets a 405, which Django leaves blank.

    HEAD and OPTIONS are sent by programs: their answer stays as it is.
    """

    def middleware(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        if response.status_code != 405 or response.content or request.method in ("HEAD", "OPTIONS"):
            return response
        page = render(request, "405.html", status=405)
        page.headers["Allow"] = response.headers["Allow"]
        return page

    return middleware
