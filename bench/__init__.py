"""Measurements: one script per row of the table of goals (docs/performance.md), run by ``python -m bench``.

Absolute times mean nothing on a shared machine. Every figure here is a ratio of two things that were measured in one
run, in turns, or a count. CPU is what the kernel charged to the server's process: fields 14 and 15 of
``/proc/PID/stat``, so most of this needs Linux.
"""
