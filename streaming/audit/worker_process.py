"""A process of Workers: `python -m streaming.audit.worker_process FILE_DESCRIPTOR`."""

import sys
from multiprocessing.connection import Connection

from streaming.arrow import load_datasets
from streaming.garbage import search_rarely

if __name__ == "__main__":
    search_rarely()
    load_datasets(with_numpy=True)

    from streaming.audit.workers import serve

    serve(Connection(int(sys.argv[1])))
