"""Words about numbers."""


def counted(count: int, noun: str) -> str:
    """A number of things, with the noun in the singular or plural.

    >>> counted(1, "client"), counted(2, "training image"), counted(1200, "run")
    ('1 client', '2 training images', '1,200 runs')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
