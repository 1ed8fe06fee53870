"""On which port a request came in. Network policies guard ports, so what may be asked for hangs on it."""

from django.http import HttpRequest


def arrived_on(request: HttpRequest) -> int:
    """The port that its connection was accepted on; no header has a say in that. 0: on none.

    Behind a Unix socket gunicorn takes SERVER_PORT from the header Host, so the socket itself is asked.
    """
    if connection := request.META.get("gunicorn.socket"):
        address = connection.getsockname()
        return int(address[1]) if isinstance(address, tuple) else 0
    return int(request.META["SERVER_PORT"] or 0)
