"""The tables and figures of the thesis and the papers, run again on this machine.

``bench/reproduce.py`` runs each experiment in a separate process and writes one page.
Experiments are in ``windows`` (graph features over long windows), ``far`` (a graph's days behind a
network and behind slower links) and ``memory`` (tables in another node's memory).  ``batches`` (all
rows in one call, many copies), ``together`` (lender and borrower at once), ``whole`` (all of a
table, stores past the cache), ``steps`` (an execution graph) and ``count`` (100 M objects) have
what the works name and did not measure.  ``theirs`` has the published figures, each with its
source; ``page`` draws.
"""
