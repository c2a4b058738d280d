"""Who gets a connection: the rule in its plainest form, which the kernel's program is tested against.

The longest prefix wins whatever its port; at equal length the concrete port beats port 0.
"""

from __future__ import annotations

from svcctl.model.prefix import covers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from svcctl.model.binding import Binding


def matches(binding: Binding, protocol: int, family: int, address: bytes, port: int) -> bool:
    """Whether the binding is a candidate for a connection to (address of 16 bytes, port)."""
    return (
        binding.protocol == protocol
        and binding.port in (port, 0)
        and covers((binding.family, binding.address, binding.length), family, address)
    )


def specificity(binding: Binding) -> tuple[int, bool]:
    """Higher wins. Two different bindings that match one connection never have the same."""
    return binding.length, binding.port != 0


def choose(
    bindings: Iterable[Binding], protocol: int, family: int, address: bytes, port: int
) -> tuple[Binding | None, list[Binding]]:
    """(winner or None, the other candidates in the order in which they would inherit)."""
    candidates = [each for each in bindings if matches(each, protocol, family, address, port)]
    candidates.sort(key=specificity, reverse=True)
    if not candidates:
        return None, []
    return candidates[0], candidates[1:]
