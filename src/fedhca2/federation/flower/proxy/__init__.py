"""What stands on the public address in front of a SuperLink: sites reach the fleet's interface, and nothing else.

The SuperLink trusts whoever has a key more than it should. Every request is read whole, within bounds, and looked at
here before it sees it; what it answers is passed on as it comes.
"""
