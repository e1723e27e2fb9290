"""When `one_early` takes items from its source."""

from fedhca2.data.batches import one_early


def test_items_are_taken_one_turn_before_they_are_asked_for():
    taken = []

    def source():
        for number in range(3):
            taken.append(number)
            yield number

    items = one_early(source())
    assert taken == [0]
    assert next(items) == 0
    assert taken == [0, 1]
    assert list(items) == [1, 2]
    assert taken == [0, 1, 2]
