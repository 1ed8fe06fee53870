"""The floor: what any client must do, and nothing else. One kept connection, the standard library's HTTP and JSON."""

import http.client
import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote, urlsplit

PAGE = 500  # as the site asks for

Path = str


class Connection:
    """One connection to the API server."""

    def __init__(self, url: str, token: str = "") -> None:
        parts = urlsplit(url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._http = kind(parts.hostname or "", parts.port, timeout=60)
        self._headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        self._http.request(method, path, json.dumps(body) if body is not None else None, self._headers)
        answer = self._http.getresponse()
        text = answer.read()
        if answer.status >= 400 and (method, answer.status) != ("DELETE", 404):  # its owner took it along
            raise RuntimeError(f"{method} {path}: {answer.status} {text[:300]!r}")
        return json.loads(text)

    def count(self, path: Path) -> int:
        """Pages through a listing, parses every page and drops it."""
        found, following = 0, ""
        while True:
            page = self.ask("GET", f"{path}?limit={PAGE}{following and f'&continue={quote(following)}'}")
            found += len(page["items"])
            following = page["metadata"].get("continue", "")
            if not following:
                return found

    def close(self) -> None:
        self._http.close()


class Api:
    """Several calls at once, with one connection each."""

    def __init__(self, url: str, token: str, connections: int = 1) -> None:
        self._connections = [Connection(url, token) for _ in range(connections)]

    def all(self, calls: Iterable[tuple[str, Path, Any]]) -> list[Any]:
        """Answers in the order of the calls."""
        calls = list(calls)
        answers: list[Any] = [None] * len(calls)

        def work(number: int) -> None:
            for place in range(number, len(calls), len(self._connections)):
                answers[place] = self._connections[number].ask(*calls[place])

        with ThreadPoolExecutor(len(self._connections)) as pool:
            list(pool.map(work, range(len(self._connections))))
        return answers

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
