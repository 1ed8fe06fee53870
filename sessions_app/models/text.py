LONGEST = 2000  # characters of what the cluster, or an error of ours, had to say


def storable(text: str, length: int = LONGEST) -> str:
    """PostgreSQL keeps no NUL and no half surrogate; an error page may have either."""
    clean = text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()
    return clean[:length]
