"""What register and register-pid share: plan, apply, say what happened."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.render.changes import CHANGED, CREATED, UNCHANGED, Change
from svcctl.state.sockets import apply_register, format_endpoint, plan_register

if TYPE_CHECKING:
    from collections.abc import Sequence

    from svcctl.cli.env import Env
    from svcctl.state.session import State
    from svcctl.state.sockets import Offer, Registration
    from svcctl.state.writer import Writer


def register_offers(
    env: Env, state: State, writer: Writer | None, label: str, offers: Sequence[Offer]
) -> None:
    """Register sockets under a label (without a writer: only plan) and print a line for each destination."""
    plans = plan_register(state, label, offers)
    if writer is not None:
        apply_register(writer, plans)
    endpoints = {offer.info.cookie: format_endpoint(offer.info) for offer in offers}
    env.emit_changes([_change(plan, endpoints) for plan in plans])


def _change(plan: Registration, endpoints: dict[int, str]) -> Change:
    action = UNCHANGED if not plan.changes else CHANGED if plan.before else CREATED
    listens = sorted({endpoints[cookie] for cookie in plan.after if cookie in endpoints})
    cookies = " ".join(f"sk:{cookie:x}" for cookie in plan.after)
    gone = [cookie for cookie in plan.before.values() if cookie not in plan.after]
    note = ", ".join(listens) + (
        f"; replaced {' '.join(f'sk:{cookie:x}' for cookie in gone)}" if gone else ""
    )
    fields = {
        "label": plan.key.label,
        "cookies": list(plan.after),
        "replaced": gone,
        "endpoints": listens,
    }
    return Change(action, "socket", f"{plan.key} {cookies}", note or None, fields)
