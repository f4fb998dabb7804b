"""What goes wrong through no mistake in the code: then the message is all that a user needs."""


class UserError(Exception):
    """Something that the person at the keyboard can mend; one sentence says what and how.

    Attributes:
        exit_code: Of the command that it ends.
    """

    exit_code = 1


class OptionError(UserError):
    """An option that makes no sense here."""

    exit_code = 2


def reason(error: OSError) -> str:
    """Return what the system says of a file or a folder; of a file in a folder's place, clearly."""
    if isinstance(error, FileExistsError):
        return "it is a file, where a folder is wanted"
    return error.strerror or str(error)
