"""Whether blocks of a kernel find room on a multiprocessor of a card."""

from kernelmux.registry.util.cards import Card

RESERVED = 1 << 10  # bytes of shared memory of each block, by the driver, from sm_80 on


def fits(card: Card, shared: int, threads: int, blocks: int = 1) -> bool:
    """Whether a block may have `shared` bytes of shared memory, static and dynamic together, and so many blocks of
    `threads` threads share a multiprocessor."""
    reserved = RESERVED if card.capability >= (8, 0) else 0
    together = blocks * (shared + reserved) <= card.shared_per_processor and blocks * threads <= card.threads
    return shared <= card.shared_per_block and together
