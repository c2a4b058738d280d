"""Names: labels, which bindings give to the sockets behind them, and the rule for any other name."""

from __future__ import annotations

from svcctl.model.bad_value import BadValue

MAX_LABEL_BYTES = 255
MAX_OWNER_BYTES = 64


def check_label(text: str) -> str:
    """Returns `text` if it can be a label: 1 to 255 bytes of printable UTF-8. Raises UsageProblem otherwise."""
    return check_name("label", text, MAX_LABEL_BYTES)


def check_name(what: str, text: str, most: int) -> str:
    """Returns `text` if it is 1 to `most` bytes of printable UTF-8. Raises UsageProblem otherwise.

    Printable is what `str.isprintable` says: no control or format characters (a name must not turn a
    listing around or break its lines), no separators but the space, no surrogates (bytes of the command
    line that were not UTF-8 arrive as such). Blanks alone are refused: nobody would see them in a listing.
    """
    if not text:
        raise BadValue(what, text, f"a {what} cannot be empty")
    if text.isspace() and text.isprintable():
        raise BadValue(what, text, "has nothing but blanks")
    if not text.isprintable():
        bad = next(character for character in text if not character.isprintable())
        if "\ud800" <= bad <= "\udfff":
            raise BadValue(what, text, "not valid UTF-8")
        raise BadValue(what, text, f"has a character that cannot be printed (U+{ord(bad):04X})")
    # No character takes more than four bytes: only a long text needs to be measured.
    if len(text) > most // 4:
        size = len(text.encode())
        if size > most:
            raise BadValue(what, text, f"is {size} bytes long, {most} at most")
    return text
