"""The labels that users give to their personal access tokens and passkeys."""

from postd.protocol.password import has_control, is_encodable

LABEL_MAX_CHARS = 100
"""The longest label."""


def check_label(label: str) -> str:
    """Return a label without white space around it.

    Raises:
        ValueError: it cannot be a label; `str()` says why.
    """
    label = label.strip()
    if len(label) > LABEL_MAX_CHARS:
        raise ValueError(f"has more than {LABEL_MAX_CHARS} characters")
    if has_control(label) or not is_encodable(label):
        raise ValueError("has a control character, or is not text")
    return label
