"""The tests, with one thread each for PyTorch and BLAS.

As many test processes run at once as there are cores. With more threads they wait for each other:
that took a third of the time of tests that compute with PyTorch. Tests about threads set their own
number.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
