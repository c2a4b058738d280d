"""A file that is there whole, old or new, whatever happens while it is written."""

from __future__ import annotations

import os


def replace_file(path: str, data: bytes, mode: int) -> None:
    """Write `data` beside `path` and rename it over it, synced to the disk before and after.

    The file is a new one with this mode and the caller's uid: a symbolic link or hard link at `path` is
    replaced, not followed. Raises OSError, and then `path` is as it was.
    """
    directory, name = os.path.split(path)
    fd = os.open(directory or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        temporary = f".{name[:200]}.{os.urandom(6).hex()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(temporary, flags, mode, dir_fd=fd)
        try:
            try:
                os.fchmod(file, mode)  # whatever the umask
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(file, rest) :]
                os.fsync(file)
            finally:
                os.close(file)
            os.rename(temporary, name, src_dir_fd=fd, dst_dir_fd=fd)
        except BaseException:
            os.unlink(temporary, dir_fd=fd)
            raise
        os.fsync(fd)
    finally:
        os.close(fd)
