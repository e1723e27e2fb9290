"""`python -m fedhca2`: the command."""

from fedhca2.cli import main

main()
