"""The numbers of protocols and address families as the maps hold them, and their names.

A protocol is its IP protocol number. A family is the IP version, not AF_INET/AF_INET6: those two differ
from system to system and do not fit the reader of a map dump.
"""

from __future__ import annotations

TCP = 6
UDP = 17

IPV4 = 4
IPV6 = 6

PROTOCOL_NUMBERS = {"tcp": TCP, "udp": UDP}
PROTOCOL_NAMES = {TCP: "tcp", UDP: "udp"}

FAMILY_NUMBERS = {"ipv4": IPV4, "ipv6": IPV6}
FAMILY_NAMES = {IPV4: "ipv4", IPV6: "ipv6"}
