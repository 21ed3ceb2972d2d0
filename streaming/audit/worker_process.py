"""A process of Workers: `python -m streaming.audit.worker_process FILE_DESCRIPTOR`."""

import gc
import sys
from multiprocessing.connection import Connection

from streaming.arrow import load_datasets

if __name__ == "__main__":
    gc.set_threshold(50_000, 50, 100)  # as streaming/__main__.py does
    load_datasets(with_numpy=True)

    from streaming.audit.workers import serve

    serve(Connection(int(sys.argv[1])))
