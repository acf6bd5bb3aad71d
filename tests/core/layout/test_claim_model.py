"""A model of native/shm/claim.c: every interleaving of three claimers, a sealing parent and one kill.

Each shared load, store and swap is one step, and any actor may take the next. Claimers claim a
row and commit it; the parent links and seals until the ring has wrapped; one claimer may be
killed at any instant, and is reaped. The properties are checked in every state, and
mutants of the algorithm show that the checks can fail.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import pytest

ROWS, CLAIMERS, CHAIN, BLOCKS = 2, 3, 2, 3
SEALS = 3  # enough for block 0 to be opened a second time
CLAIMS = 1  # number of each claimer's claims
SEAL = -1  # the mark with which the parent takes the row where it seals
LONGEST_OPERATION = 40  # maximum number of steps of an actor that runs alone

RowRef = tuple[int, int, int]  # epoch, block, row
Owner = tuple[int, int]  # epoch, claimer or SEAL
NOWHERE: RowRef = (0, 0, 0)
NOTHING: Owner = (0, 0)


class Actor(NamedTuple):
    """Where an actor is in `vecenv_claim` or `vecenv_seal`, and its local variables.

    start -> owner -> swap -> help -> done -> sent -> start     (claimers)
    idle -> start -> owner -> swap -> link -> help -> idle      (the parent)
    """

    at: str
    left: int  # claims or seals to come
    row_ref: RowRef = NOWHERE
    before: Owner = NOTHING
    target: RowRef = NOWHERE
    has_taken: bool = False


class State(NamedTuple):
    """Shared memory, the actors, and the parent's own state."""

    open: RowRef
    owners: tuple[Owner, ...]  # the rows of all blocks
    cells: tuple[int, ...]
    links: tuple[RowRef, ...]
    claimers: tuple[Actor, ...]
    parent: Actor
    chain: tuple[RowRef, ...]
    sealed: tuple[tuple[int, int] | None, ...]  # per block: epoch and count, None while in use or free
    free: tuple[int, ...]
    next_epoch: int
    has_killed: bool


class Violation(AssertionError):
    """A property of the model does not hold."""


def index(row_ref: RowRef) -> int:
    return row_ref[1] * ROWS + row_ref[2]


def replaced(items: tuple, position: int, item: object) -> tuple:
    return (*items[:position], item, *items[position + 1 :])


def first_state() -> State:
    chain = tuple((i + 1, i, 0) for i in range(CHAIN))
    links = [NOWHERE] * BLOCKS
    for row_ref, successor in pairwise(chain):
        links[row_ref[1]] = successor
    return State(
        open=chain[0],
        owners=((0, 0),) * (BLOCKS * ROWS),
        cells=(0,) * (BLOCKS * ROWS),
        links=tuple(links),
        claimers=(Actor("start", CLAIMS),) * CLAIMERS,
        parent=Actor("idle", SEALS),
        chain=chain,
        sealed=(None,) * BLOCKS,
        free=tuple(range(CHAIN, BLOCKS)),
        next_epoch=CHAIN + 1,
        has_killed=False,
    )


class Model:
    """The algorithm as it is. Mutants override a step."""

    # ---- try_take, shared by claim and seal ---------------------------------------------

    def take(self, state: State, actor: Actor, mark: int) -> tuple[State, Actor]:
        """Make the next step of an actor within `try_take` under `mark`."""
        return getattr(self, f"_at_{actor.at}")(state, actor, mark)

    def _at_start(self, state: State, actor: Actor, mark: int) -> tuple[State, Actor]:
        return state, actor._replace(at="owner" if state.open[2] < ROWS else "link", row_ref=state.open)

    def _at_owner(self, state: State, actor: Actor, mark: int) -> tuple[State, Actor]:
        before = state.owners[index(actor.row_ref)]
        if before[0] < actor.row_ref[0]:
            return state, actor._replace(at="swap", before=before)
        return state, self._go_on_from(actor, before[1])

    def _at_swap(self, state: State, actor: Actor, mark: int) -> tuple[State, Actor]:
        if state.owners[index(actor.row_ref)] != actor.before:
            return state, restart(actor)
        mine = (actor.row_ref[0], mark)
        state = state._replace(owners=replaced(state.owners, index(actor.row_ref), mine))
        return state, self._go_on_from(actor._replace(has_taken=True), mark)

    def _go_on_from(self, actor: Actor, taken_by: int) -> Actor:
        """Row `actor.row_ref` is taken: move the open word to the next row, or past a seal."""
        epoch, block, row = actor.row_ref
        if taken_by == SEAL:
            return actor._replace(at="link", before=NOTHING)
        return actor._replace(at="help", before=NOTHING, target=(epoch, block, row + 1))

    def _at_link(self, state: State, actor: Actor, mark: int) -> tuple[State, Actor]:
        """The block is full or sealed, and therefore linked: find the block after it."""
        return state, actor._replace(at="help", target=state.links[actor.row_ref[1]])

    def _at_help(self, state: State, actor: Actor, mark: int) -> tuple[State, Actor]:
        state = self._swap_open(state, actor.row_ref, actor.target)
        return state, actor._replace(at="done", target=NOWHERE) if actor.has_taken else restart(actor)

    def _swap_open(self, state: State, expected: RowRef, desired: RowRef) -> State:
        return state._replace(open=desired) if state.open == expected else state

    # ---- actors -------------------------------------------------------------------------

    def move_claimer(self, state: State, i: int) -> State | None:
        """Make the next step of a claimer; return None if it has none now."""
        actor = state.claimers[i]
        if actor.at in ("dead", "sent"):
            return None
        if actor.at == "done":
            actor = actor._replace(at="sent", left=actor.left - 1)
            state = state._replace(cells=replaced(state.cells, index(actor.row_ref), actor.row_ref[0]))
        else:
            state, actor = self.take(state, actor, i)
        return collect(state._replace(claimers=replaced(state.claimers, i, actor)))

    def move_parent(self, state: State) -> State | None:
        """Make the next step of the parent, as in vecenv_ring_seal; return None if it has none now."""
        actor = state.parent
        if actor.at == "idle":
            if not actor.left or not state.free:
                return None
            successor = (state.next_epoch, state.free[0], 0)
            return state._replace(
                links=replaced(state.links, state.chain[-1][1], successor),
                chain=(*state.chain, successor),
                free=state.free[1:],
                sealed=replaced(state.sealed, successor[1], None),
                next_epoch=state.next_epoch + 1,
                parent=actor._replace(at="start"),
            )
        if actor.at == "start" and state.open[0] != state.chain[0][0]:
            return self._finish_seal(state, ROWS)  # the block was filled, and claimers use the next one
        state, actor = self.take(state, actor, SEAL)
        if actor.at == "done":
            return self._finish_seal(state, actor.row_ref[2])
        return state._replace(parent=actor)

    def _finish_seal(self, state: State, count: int) -> State:
        epoch, block, _ = state.chain[0]
        return collect(
            state._replace(
                parent=Actor("idle", state.parent.left - 1),
                chain=state.chain[1:],
                sealed=replaced(state.sealed, block, (epoch, count)),
            )
        )

    def kill(self, state: State, i: int) -> State:
        """Kill a claimer and reap it: the rows that it owns and did not commit become void."""
        cells = tuple(
            owner[0] if owner[1] == i and owner[0] > cell else cell for owner, cell in zip(state.owners, state.cells)
        )
        dead = Actor("dead", 0)
        return collect(state._replace(cells=cells, claimers=replaced(state.claimers, i, dead), has_killed=True))

    def moves(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield every possible next state."""
        for i, actor in enumerate(state.claimers):
            after = self.move_claimer(state, i)
            if after is not None:
                yield f"claimer {i} {actor.at}", after
                if not state.has_killed:
                    yield f"kill {i}", self.kill(state, i)
        after = self.move_parent(state)
        if after is not None:
            yield f"parent {state.parent.at}", after


def restart(actor: Actor) -> Actor:
    """Go back to the start of the loop and discard the local variables."""
    return Actor("start", actor.left)


def collect(state: State) -> State:
    """Let the parent collect: free the blocks without uncommitted rows, and request the next rows."""
    claimers = tuple(
        Actor("start", actor.left)
        if actor.at == "sent" and actor.left and is_collected(state, actor.row_ref)
        else actor
        for actor in state.claimers
    )
    free = list(state.free)
    for block, seal in enumerate(state.sealed):
        if seal is not None and block not in free:
            rows = range(block * ROWS, block * ROWS + seal[1])
            if all(state.cells[row] == seal[0] for row in rows):
                free.append(block)
    return state._replace(claimers=claimers, free=tuple(free))


def is_collected(state: State, row_ref: RowRef) -> bool:
    seal = state.sealed[row_ref[1]]
    return seal is not None and seal[0] == row_ref[0] and row_ref[2] < seal[1]


def canonical(state: State) -> State:
    """Number the claimers by their positions, so that states which differ only in numbering are equal."""
    order = sorted(range(CLAIMERS), key=state.claimers.__getitem__)
    if order == list(range(CLAIMERS)):
        return state
    number = {old: new for new, old in enumerate(order)} | {SEAL: SEAL}
    return state._replace(
        claimers=tuple(state.claimers[old] for old in order),
        owners=tuple((epoch, number[mark]) if epoch else NOTHING for epoch, mark in state.owners),
    )


# ---- properties ---------------------------------------------------------------------------


def check(state: State) -> None:
    """Raise Violation if the state is forbidden."""
    for i, actor in enumerate(state.claimers):
        holds = actor.at == "done" or (actor.at in ("link", "help") and actor.has_taken)
        if holds and state.owners[index(actor.row_ref)] != (actor.row_ref[0], i):
            raise Violation(f"claimer {i} holds {actor.row_ref}, whose owner word says otherwise")
    for block, seal in enumerate(state.sealed):
        if seal is not None:
            epoch, count = seal
            marks = [state.owners[block * ROWS + row] for row in range(ROWS)]
            claimed = [owner[0] == epoch and owner[1] != SEAL for owner in marks]
            if claimed != [row < count for row in range(ROWS)]:
                raise Violation(f"block {block} was sealed with {count} rows, owners are {marks}")


def check_last(state: State) -> None:
    """Raise Violation if no actor can move but work is left."""
    if state.parent.left or state.parent.at != "idle":
        raise Violation("the parent waits for ever")
    if any(actor.at not in ("dead", "sent") for actor in state.claimers):
        raise Violation("a claimer waits for ever")


def check_alone(model: Model, state: State) -> None:
    """Raise Violation if an actor cannot finish while all others stand still."""
    for i, actor in enumerate(state.claimers):
        run_alone(state, lambda now, i=i: model.move_claimer(now, i), lambda now, i=i: now.claimers[i].at, actor.at)
    run_alone(state, model.move_parent, lambda now: now.parent.at, state.parent.at)


def run_alone(state: State, move, at, began: str) -> None:
    for _ in range(LONGEST_OPERATION):
        if at(state) in ("sent", "dead", "idle"):
            return
        state = move(state)
    raise Violation(f"an actor at {began} never finishes by itself")


def explore(model: Model) -> int:
    """Visit every reachable state; return how many there are.

    Raises:
        Violation: with the steps that lead there, the claimers' numbers changing on the way.
    """
    first = first_state()
    came_from: dict[State, tuple[State, str] | None] = {first: None}
    stack = [first]
    while stack:
        state = stack.pop()
        try:
            is_last = True
            for name, following in model.moves(state):
                is_last = False
                after = canonical(following)
                if after not in came_from:
                    came_from[after] = (state, name)
                    check(after)
                    if name.startswith("kill"):
                        check_alone(model, after)
                    stack.append(after)
            if is_last:
                check_last(state)
        except Violation as error:
            raise Violation(f"{error}\nafter {', '.join(steps_to(came_from, state))}") from None
    return len(came_from)


def steps_to(came_from: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    steps = []
    while (origin := came_from[state]) is not None:
        state, name = origin
        steps.append(name)
    return steps[::-1]


@pytest.mark.extended
def test_claims_hold_in_every_interleaving():
    assert explore(Model()) > 10_000


# ---- mutants --------------------------------------------------------------------------------


class OwnerAfterOpen(Model):
    """Claims by moving the open word, and writes the owner in the next step."""

    def _at_swap(self, state, actor, mark):
        if state.open != actor.row_ref:
            return state, restart(actor)
        epoch, block, row = actor.row_ref
        target = state.links[block] if mark == SEAL else (epoch, block, row + 1)
        return state._replace(open=target), actor._replace(at="help", has_taken=True)

    def _at_help(self, state, actor, mark):
        if not actor.has_taken:
            return super()._at_help(state, actor, mark)
        owners = replaced(state.owners, index(actor.row_ref), (actor.row_ref[0], mark))
        return state._replace(owners=owners), actor._replace(at="done")


class SealByOpen(Model):
    """Seals by moving the open word alone, so that a claimer within `try_take` can still take the row."""

    def _at_swap(self, state, actor, mark):
        if mark != SEAL:
            return super()._at_swap(state, actor, mark)
        if state.open != actor.row_ref:
            return state, restart(actor)
        return state._replace(open=state.links[actor.row_ref[1]]), actor._replace(at="done")


class StoreOwner(Model):
    """Stores the owner word instead of swapping it: the second of two claimers succeeds as well."""

    def _at_swap(self, state, actor, mark):
        return super()._at_swap(state, actor._replace(before=state.owners[index(actor.row_ref)]), mark)


class NobodyHelps(Model):
    """Only the claimer that took a row moves the open word past it: a dead one blocks all others."""

    def _at_owner(self, state, actor, mark):
        state, actor = super()._at_owner(state, actor, mark)
        return state, actor if actor.at == "swap" else restart(actor)


class LinkFirst(Model):
    """Reads the link of a block at once: too early if the block is not linked yet."""

    def _at_start(self, state, actor, mark):
        state, actor = super()._at_start(state, actor, mark)
        return state, actor._replace(target=state.links[actor.row_ref[1]])

    def _at_link(self, state, actor, mark):
        return state, actor._replace(at="help")


MUTANTS = [OwnerAfterOpen, SealByOpen, StoreOwner, NobodyHelps, LinkFirst]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda kind: kind.__name__)
def test_model_can_fail(mutant):
    with pytest.raises(Violation):
        explore(mutant())
