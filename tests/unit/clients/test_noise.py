from collections import Counter
from decimal import Decimal, localcontext

import numpy as np
import pytest
import scipy  # imports its parts when they are used

from fedhca2.clients.privacy import CAPACITY, COLUMNS, WIDTH, Noise, alias_table

KEY = bytes(range(32))
DEVIATIONS = [2.0**24, 1.37 * 2**24, 2.0**25 - 1]


def test_noise_is_normal_also_in_its_tails_and_without_memory_and_takes_every_step_alike():
    source = Noise(KEY, DEVIATIONS[1])
    drawn = source.draw(1_000_000)
    far = np.abs(drawn) > 3 * DEVIATIONS[1]
    assert scipy.stats.kstest(drawn / DEVIATIONS[1], "norm").pvalue > 0.01
    assert scipy.stats.binomtest(int(far.sum()), len(drawn), 2 * scipy.stats.norm.sf(3)).pvalue > 0.01
    assert scipy.stats.chisquare(np.bincount(drawn & 63)).pvalue > 0.01
    assert abs(np.corrcoef(drawn[1:], drawn[:-1])[0, 1]) < 5 / len(drawn) ** 0.5
    assert not np.array_equal(source.draw(9), drawn[:9])  # draws go on where they were


@pytest.mark.parametrize("deviation", DEVIATIONS)
def test_each_bin_comes_as_often_as_the_law_says_to_the_last_bits(deviation):
    table = alias_table(deviation)
    assert table.highest.max() <= 1  # no step is wanted more often than it is proposed
    weights = Counter()
    for column in range(COLUMNS):
        own = int(table.threshold[column])
        weights[column] += own
        weights[int(table.alias[column])] += CAPACITY - own
    with localcontext(prec=50):
        for bin in range(COLUMNS):
            law = (-((Decimal(WIDTH) * bin / Decimal(deviation)) ** 2) / 2).exp() * weights[0]
            found = weights[bin] * Decimal(float(table.highest[bin]))
            assert abs(found / law - 1) < Decimal("3e-16")
