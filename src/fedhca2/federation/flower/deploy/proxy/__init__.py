"""The proxy on the public address in front of a SuperLink: sites reach the fleet interface and nothing else.

The SuperLink trusts holders of a key more than it should. Every request is read whole, within bounds, and checked here
before the SuperLink sees it; responses are streamed.
"""
