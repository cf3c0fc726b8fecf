"""How fast this library is beside real Minari, and beside what the machine allows.

::

    make bench                                   every case, at the sizes of the goals
    make bench SMALL=1                           smaller sizes, within 3 minutes
    python -m benchmarks --only 'create arrow'   the cases whose name and size match a pattern
    python -m benchmarks --table                 put the figures of results.json into docs/speed.md

``cases/`` says what is measured and what is to be reached, ``measure.py`` how; ``pipeline.py``
collects as the pipeline does; ``report.py``, ``chart.py`` and ``scale_chart.py`` show it.
"""
