"""What is decided: values in, values out.

No clock, no dice, no network, no log, no Redis. The same arguments give the same answer, so a test can ask for anything.
"""
