from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event

from fedhca2.data.dataset import shared_property


class Slow:
    """Takes long enough to compute a value that another thread would begin too, if it could."""

    def __init__(self):
        self.begun, self.twice = 0, Event()

    @shared_property
    def value(self):
        self.begun += 1
        if self.begun > 1:
            self.twice.set()
        self.twice.wait(0.2)
        return object()


def test_threads_compute_a_shared_property_once():
    slow, together = Slow(), Barrier(4)

    def ask(_):
        together.wait()
        return slow.value

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(ask, range(4)))) == 1
    assert slow.begun == 1
