"""The tables and figures of the thesis and the papers, run again on this machine.

``bench/reproduce.py`` runs each experiment in a separate process and writes one page.
Experiments are in ``windows`` (graph features over long windows), ``far`` (a graph's days behind a
network and behind slower links) and ``memory`` (tables in another node's memory).  ``theirs`` has
the published figures, each with its source; ``page`` draws.
"""
