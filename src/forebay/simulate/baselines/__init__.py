"""Other people's admission control behind our events and effects, so that all are measured in one harness.

Each module holds one law and says where it was read, and what of it is left out; `registry` finds one by its name.
What they share is in `pool_law` (books, routing, ways out) and `waiting`. None of it is used by a gateway.
"""
