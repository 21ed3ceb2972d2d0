"""Samples the memory of a running service or audit twice a second: its Python driver, its JVM, its Python workers."""

import contextlib
import threading

import psutil

_SAMPLE_SECONDS = 0.5


class Sampler:
    """Records the highest resident bytes of each kind of process, and of all together.

    Forked workers share pages, which count for each of them in these figures. `shared_once` counts them once.

    Args:
        pid: of the driver's Python; by default of this process.
    """

    def __init__(self, pid: int | None = None) -> None:
        self._driver = psutil.Process(pid)
        self._peaks: dict[str, int] = {}
        self._cpu: dict[int, float] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> "Sampler":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def peak_mb(self) -> dict[str, int]:
        """Return the peaks in MB."""
        return {f"{kind}_mb": peak // 1_000_000 for kind, peak in sorted(self._peaks.items())}

    def cpu_seconds(self) -> float:
        """Return the CPU time of all processes, each at its last sample."""
        return sum(self._cpu.values())

    def _sample(self) -> None:
        while not self._done.wait(_SAMPLE_SECONDS):
            with contextlib.suppress(psutil.NoSuchProcess):  # the process has ended
                self._look()

    def _look(self) -> None:
        seen = {"driver_python": self._driver.memory_info().rss, "jvm": 0, "workers": 0}
        shared_once = 0
        for process in (self._driver, *self._driver.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                self._cpu[process.pid] = sum(process.cpu_times()[:2])
                shared_once += process.memory_full_info().pss
        for child in self._driver.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                seen["jvm" if child.name() == "java" else "workers"] += child.memory_info().rss
        seen["all"] = sum(seen.values())
        seen["shared_once"] = shared_once
        for kind, size in seen.items():
            self._peaks[kind] = max(size, self._peaks.get(kind, 0))
