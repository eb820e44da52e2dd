"""Whether every call that a spec allows compiles for every card and fits on it, without any of these cards.

calls    what is asked: the workloads of each spec, and shapes drawn around them
choices  who would run a call on a card, or what of the card refuses it
judge    whether what that launches compiles for the card, and fits within its limits
worker   a process that asks all of it of one card
sweep    `kernelmux conformance --fits [CARD ...]`: a process a card, side by side, and what came out
record   cards.json: what came out, and whether it still speaks of the sources as they are
table    `kernelmux support --cards`: cards and operators
"""
