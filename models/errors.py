"""The errors of a model repository, as one tree. The tree knows no HTTP; the service maps each class to a status.

    RepositoryError
    ├── InvalidReference   the text is not a model reference, a name or a version
    ├── NotFound           a well-formed reference that names nothing here
    ├── Conflict           the change contradicts what is there: exists already, still aliased, lock held too long
    ├── Stale              compare-and-set: another caller changed the alias first
    ├── Corrupt            stored bytes are not the published ones; the message names the file
    ├── InvalidSource      what was offered for import cannot be accepted; the message names the file or key
    ├── Unreachable        what several instances share cannot be had now; nothing was changed
    └── StoreUnavailable   the shared store does not answer; what is cached is served all the same
        └── StoreFull      it has no room

Every message is a sentence for the caller and says what to change. None contains a path of this machine.
"""

import errno


class RepositoryError(Exception):
    """Base of every error that `models` raises on purpose."""


class InvalidReference(RepositoryError):
    """The text is not `name`, `name:version` or `name@alias`."""


class NotFound(RepositoryError):
    """No such model, version or alias."""


class Conflict(RepositoryError):
    """The change contradicts the present state; nothing was changed."""


class Stale(RepositoryError):
    """The alias no longer points where the caller believed; nothing was changed."""


class Corrupt(RepositoryError):
    """Stored bytes differ from what was published."""


class InvalidSource(RepositoryError):
    """The source of an import is refused; nothing was published."""


class Unreachable(RepositoryError):
    """The shared records cannot be read or changed now."""


class StoreUnavailable(RepositoryError):
    """The shared store cannot be reached, or refused; the change can be tried again."""


class StoreFull(StoreUnavailable):
    """The shared store has no room; the change can be made when it has."""


_BROKEN = (errno.EIO, errno.EROFS, errno.ENXIO, errno.ENODEV, errno.ESTALE)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.EFBIG)


def disk_is_unusable(error: Exception) -> bool:
    """Returns whether the system refused for a cause that passes or that the operator mends: a broken or read-only
    disk, lost rights, a limit of the process or the machine."""
    return isinstance(error, OSError) and error.errno in _BROKEN + _REFUSED


def disk_is_full(error: Exception) -> bool:
    """Returns whether the system refused to write because the disk, or a user's share of it, is used up."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def sentence_of(error: Exception) -> str:
    """Returns what failed, in words for a caller: of a failure of the system without the path."""
    if disk_is_full(error):
        return "the disk of the data directory is full: make room there"
    if isinstance(error, OSError) and error.strerror:
        return f"{type(error).__name__}: {error.strerror}"
    return str(error) or type(error).__name__
