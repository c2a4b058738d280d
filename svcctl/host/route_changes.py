"""News of interfaces and addresses of a network namespace: the multicast groups of rtnetlink(7), raw."""

from __future__ import annotations

from _socket import AF_NETLINK, SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_RAW, socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from svcctl.host.netns import Netns

_NETLINK_ROUTE = 0
_GROUP_LINK, _GROUP_IPV4_ADDRESS, _GROUP_IPV6_ADDRESS = 0x1, 0x10, 0x100
_GROUPS = _GROUP_LINK | _GROUP_IPV4_ADDRESS | _GROUP_IPV6_ADDRESS


class RouteChanges:
    """Tells that something changed, not what: whoever asks reads the addresses anew. Needs no right."""

    def __init__(self, netns: Netns) -> None:
        with netns.entered():
            self._socket = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, _NETLINK_ROUTE)
        try:
            self._socket.bind((0, _GROUPS))
        except BaseException:
            self._socket.close()
            raise

    def fileno(self) -> int:
        """Readable when there is news."""
        return self._socket.fileno()

    def take(self) -> bool:
        """Take all news there is; whether there was any. News that was lost counts as news."""
        any_news = False
        while True:
            try:
                self._socket.recv(65536)
            except BlockingIOError:
                return any_news
            except OSError:  # ENOBUFS: more came than the buffer holds
                pass
            any_news = True

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()
