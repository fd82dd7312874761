"""Where runs are sent to, and what a supervisor can ask of the place it runs in.

`base` says what every kind of cluster offers; one module a kind implements it. Nothing here decides anything.
"""
