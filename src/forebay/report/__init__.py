"""What a recorded workload looks like, whether it needs admission control, and which settings would suit it.

Reads records and traces (`load.traces`) once, in bounded memory, and says only what they can tell. Never looks at a
running gateway; never changes anything.
"""
