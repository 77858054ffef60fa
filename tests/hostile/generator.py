"""From a seed and an index to a hostile frame: the same pair is always the same frame.

An index says everything about its frame, also where it goes. What depends on the moment (the end of a
log) is given to `transfer_of`, and changes nothing else.
"""

from __future__ import annotations

import random
from itertools import accumulate
from typing import Final

from attrs import evolve

from tests.hostile.frame import Frame, Lane, Outcome
from tests.hostile.reporting import draw_reports
from tests.hostile.requesting import draw_request
from tests.hostile.transferring import Place, draw_transfer
from tests.users import ADMIN, ALICE

LANES: Final = (
    (Lane.MASTER, 62.8),
    (Lane.SLAVE, 33.0),
    (Lane.HA_MASTER, 2.8),
    (Lane.HA_SLAVE, 1.2),
    (Lane.TRANSFER, 0.2),
)
"""Where frames go, in per cent. A slave waits 0.1 s between two masters, so few go there."""
_LANES = [lane for lane, _ in LANES]
_WEIGHTS = list(accumulate(weight for _, weight in LANES))


SIGNERS: Final = (*[ADMIN] * 5, *[ALICE] * 3, evolve(ALICE, secret_key="wrong"), None)
"""Who signs: an admin, for whom all handlers work; a user with a list; nobody who is known; nobody."""
_ALL_BITS: Final = (1 << 40) - 1


def _chance(seed: int, index: int) -> random.Random:
    return random.Random(seed << 40 | index)


def frame_of(seed: int, index: int, *, is_signed: bool = False) -> Frame:
    """The frame of this index; `is_signed`: of a run in which nodes check users, most are signed by one."""
    chance = _chance(seed, index)
    lane = chance.choices(_LANES, cum_weights=_WEIGHTS)[0]
    match lane:
        case Lane.MASTER | Lane.SLAVE:
            kind, draft = draw_request(chance, index)
            # From another chance: the rest of the frame is the same with and without users.
            user = _chance(seed, ~index & _ALL_BITS).choice(SIGNERS) if is_signed else None
            data = draft.data if user is None else draft.signed_data(user)
            return Frame(
                seed, index, lane, kind, draft.detail, draft.outcome, (data,), draft.manner,
                draft.opaque,
                draft.must_be_refused,
            )  # fmt: skip
        case Lane.HA_MASTER | Lane.HA_SLAVE:
            kind, script = draw_reports(chance)
            return Frame(seed, index, lane, kind, script.detail, script.outcome, script.steps, script.manner)
        case Lane.TRANSFER:
            return Frame(seed, index, lane, "transfer", "", Outcome.ANY)


def transfer_of(frame: Frame, place: Place) -> tuple[Frame, bytes]:
    """A transfer's frame, with its kind, and its bytes for a slave whose log ends at this place."""
    chance = _chance(frame.seed, frame.index)
    chance.choices(_LANES, cum_weights=_WEIGHTS)
    kind, detail, data = draw_transfer(chance, place)
    return evolve(frame, kind=kind, detail=detail), data
