"""Refusals, as the API server words them: each is one `Status` object."""

from __future__ import annotations

from .resources import Obj, Resource


class ApiError(Exception):
    def __init__(self, code: int, reason: str, message: str, details: Obj | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.details = details

    @property
    def status(self) -> Obj:
        body: Obj = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": str(self)}
        if self.reason:
            body["reason"] = self.reason
        if self.details:
            body["details"] = {key: value for key, value in self.details.items() if value}
        return {**body, "code": self.code}


def _details(resource: Resource, name: str, kind: str = "") -> Obj:
    return {"name": name, "group": resource.group, "kind": kind or resource.plural}


def not_found(resource: Resource, name: str) -> ApiError:
    return ApiError(404, "NotFound", f'{resource.qualified} "{name}" not found', _details(resource, name))


def already_exists(resource: Resource, name: str, *, leaving: bool) -> ApiError:
    message = f'{resource.qualified} "{name}" already exists'
    if leaving:
        message = f"object is being deleted: {message}"
    return ApiError(409, "AlreadyExists", message, _details(resource, name))


def modified(resource: Resource, name: str) -> ApiError:
    problem = "the object has been modified; please apply your changes to the latest version and try again"
    message = f'Operation cannot be fulfilled on {resource.qualified} "{name}": {problem}'
    return ApiError(409, "Conflict", message, _details(resource, name))


def precondition_failed(resource: Resource, name: str, what: str, wanted: str, found: str) -> ApiError:
    # The real server names the kind here where every other refusal names the resource.
    message = (
        f'Operation cannot be fulfilled on {resource.qualified_kind} "{name}": the {what} in the precondition '
        f"({wanted}) does not match the {what} in record ({found}). The object might have been "
        f"{'deleted and then recreated' if what == 'UID' else 'modified'}"
    )
    return ApiError(409, "Conflict", message, _details(resource, name, resource.kind))


def invalid(resource: Resource, name: str, field: str, problem: str) -> ApiError:
    """`problem` begins with the cause's own words: `Invalid value: …`, `Required value`, `Forbidden: …`."""
    reasons = {"Required": "FieldValueRequired", "Forbidden": "FieldValueForbidden"}
    reason = reasons.get(problem.split(" ")[0].rstrip(":"), "FieldValueInvalid")
    details = _details(resource, name, resource.kind)
    details["causes"] = [{"reason": reason, "message": problem, "field": field}]
    message = f'{resource.qualified_kind} "{name}" is invalid: {field}: {problem}'
    return ApiError(422, "Invalid", message, details)


def bad_request(message: str) -> ApiError:
    return ApiError(400, "BadRequest", message)


def forbidden(resource: Resource, name: str, why: str) -> ApiError:
    what = f'{resource.qualified} "{name}"' if name else resource.qualified
    return ApiError(403, "Forbidden", f"{what} is forbidden: {why}", _details(resource, name))


def unauthorized() -> ApiError:
    return ApiError(401, "Unauthorized", "Unauthorized")


def expired(message: str) -> ApiError:
    return ApiError(410, "Expired", message)


def method_not_allowed() -> ApiError:
    return ApiError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")


def unsupported_media_type(accepted: tuple[str, ...]) -> ApiError:
    words = "the body of the request was in an unknown format - accepted media types include: "
    return ApiError(415, "UnsupportedMediaType", words + ", ".join(accepted))
